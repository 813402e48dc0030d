// Requests, numbered in the order in which they were made: an old reply must not undo what a newer one said.
const PATIENCE = 20000;

export class Net {
  constructor() {
    this.serial = 0;
  }

  async ask(path, options) {
    const serial = ++this.serial;
    let reply;
    try {
      reply = await fetch(path, { ...options, cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
    } catch {
      throw new Error("the server is away");
    }
    if (reply.status === 403) throw new Error("open the address that ducats label printed last");
    if (!reply.ok) throw new Error((await reply.text()).trim() || `error ${reply.status}`);
    return [await reply.json(), serial];
  }

  get(path, query) {
    return this.ask(`${path}?${new URLSearchParams(query)}`);
  }

  post(path, value) {
    const headers = { "Content-Type": "application/json" };
    return this.ask(path, { method: "POST", headers, body: JSON.stringify(value) });
  }
}
