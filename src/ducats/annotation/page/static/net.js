// Numbered requests, so that a late reply does not overwrite a newer one.
const TIMEOUT_MS = 20000;

export class Net {
  constructor() {
    this.serial = 0;
  }

  async request(path, options) {
    const serial = ++this.serial;
    let reply;
    try {
      reply = await fetch(path, { ...options, cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
    } catch {
      throw new Error("the server cannot be reached");
    }
    if (reply.status === 403) throw new Error("access has expired: open the address that ducats label printed last");
    if (!reply.ok) throw new Error((await reply.text()).trim() || `error ${reply.status}`);
    return [await reply.json(), serial];
  }

  get(path, query) {
    return this.request(`${path}?${new URLSearchParams(query)}`);
  }

  post(path, value) {
    const headers = { "Content-Type": "application/json" };
    return this.request(path, { method: "POST", headers, body: JSON.stringify(value) });
  }
}
