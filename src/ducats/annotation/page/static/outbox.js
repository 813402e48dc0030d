// Answers being sent. They stay in the browser's storage until the server has written them to disk. Each has its own
// id, so an answer that is sent twice counts once.
const FIRST_WAIT_MS = 500, LONGEST_WAIT_MS = 15000, MAX_ANSWERS_PER_REQUEST = 500;

function randomId() {
  return [...crypto.getRandomValues(new Uint8Array(9))].map((n) => n.toString(36).padStart(2, "0")).join("");
}

export class Outbox {
  // showStatus(text, kind) shows whether answers are saved; onReply(reply, serial, sent) receives the server's reply.
  constructor(net, showStatus, onReply) {
    this.net = net;
    this.showStatus = showStatus;
    this.onReply = onReply;
    this.name = null;
    this.memory = [];
    this.wait = FIRST_WAIT_MS;
    this.sending = false;
    addEventListener("online", () => this.retry());
  }

  open(run) {
    this.name = `ducats.${run}.outbox`;
    if (this.all().length) this.send();
  }

  all() {
    try {
      return JSON.parse(localStorage.getItem(this.name) ?? "null") ?? this.memory;
    } catch {
      return this.memory; // storage is disabled: answers are kept while the page is open
    }
  }

  store(answers) {
    this.memory = answers;
    try {
      localStorage.setItem(this.name, JSON.stringify(answers));
    } catch {
      try {
        localStorage.removeItem(this.name); // full: the stored list is outdated, this.memory is complete
      } catch { /* as above */ }
    }
  }

  // One call is one act: its answers are undone together. The keys of stored answers must stay: an older page may
  // have left answers in this browser.
  put(annotator, questions, word, seconds) {
    const act = randomId();
    const each = seconds === null ? null : seconds / questions.length;
    const answers = questions.map((question, n) => (
      { who: annotator, question, word, seconds: each, ref: `${act}.${n}` }));
    this.store([...this.all(), ...answers]);
    this.send();
  }

  pending() {
    return new Set(this.all().map((answer) => answer.question));
  }

  // Resolves when every answer is saved.
  async idle() {
    while (this.all().length) await new Promise((resolve) => setTimeout(resolve, 50));
  }

  retry() {
    clearTimeout(this.timer);
    this.send();
  }

  async send() {
    if (this.sending || !this.name) return;
    const all = this.all();
    if (!all.length) return;
    this.sending = true;
    const annotator = all[0].who;
    const answers = all.filter((answer) => answer.who === annotator).slice(0, MAX_ANSWERS_PER_REQUEST);
    this.showStatus(all.length > 1 ? `Saving ${all.length}…` : "Saving…", "waiting");
    try {
      const plain = answers.map(({ who: _, ref, ...answer }) => ({ ...answer, external_id: ref }));
      const [reply, serial] = await this.net.post("/api/answers", { annotator, answers: plain });
      const sent = new Set(answers.map((answer) => answer.ref));
      this.store(this.all().filter((answer) => !sent.has(answer.ref)));
      this.wait = FIRST_WAIT_MS;
      this.sending = false;
      const left = this.all().length;
      if (!left) this.showStatus("Saved ✓", "");
      this.onReply(reply, serial, answers);
      if (left) this.send();
    } catch (error) {
      this.sending = false;
      const count = all.length === 1 ? "1 answer is" : `${all.length} answers are`;
      this.showStatus(`Not saved yet (${error.message}). Trying again; ${count} stored in this browser.`, "offline");
      this.timer = setTimeout(() => this.send(), this.wait);
      this.wait = Math.min(this.wait * 2, LONGEST_WAIT_MS);
    }
  }
}
