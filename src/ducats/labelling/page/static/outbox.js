// Answers on their way: in the browser's storage until the server says that they are on its disk. Each has a name
// of its own, so that one that is sent twice counts once.
const FIRST_WAIT = 500, LONGEST_WAIT = 15000, AT_ONCE = 500;

function random() {
  return [...crypto.getRandomValues(new Uint8Array(9))].map((n) => n.toString(36).padStart(2, "0")).join("");
}

export class Outbox {
  // said(text, kind) shows how it stands; came(reply, serial, sent) gets what the server answers.
  constructor(net, said, came) {
    this.net = net;
    this.said = said;
    this.came = came;
    this.name = null;
    this.memory = [];
    this.wait = FIRST_WAIT;
    this.sending = false;
    addEventListener("online", () => this.retry());
  }

  open(desk) {
    this.name = `ducats.${desk}.outbox`;
    if (this.all().length) this.send();
  }

  all() {
    try {
      return JSON.parse(localStorage.getItem(this.name) ?? "null") ?? this.memory;
    } catch {
      return this.memory; // storage is switched off: answers wait as long as the page is open
    }
  }

  keep(answers) {
    this.memory = answers;
    try {
      localStorage.setItem(this.name, JSON.stringify(answers));
    } catch {
      try {
        localStorage.removeItem(this.name); // it is full: what is there is old, and the memory has it all
      } catch { /* as above */ }
    }
  }

  // One call is one act of the person: it is undone as one.
  put(who, questions, word, seconds) {
    const act = random();
    const each = seconds === null ? null : seconds / questions.length;
    const answers = questions.map((question, n) => ({ who, question, word, seconds: each, ref: `${act}.${n}` }));
    this.keep([...this.all(), ...answers]);
    this.send();
  }

  pending() {
    return new Set(this.all().map((answer) => answer.question));
  }

  // Until nothing is on its way.
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
    const who = all[0].who;
    const answers = all.filter((answer) => answer.who === who).slice(0, AT_ONCE);
    this.said(all.length > 1 ? `saving ${all.length} …` : "saving …", "waiting");
    try {
      const plain = answers.map(({ who: _, ...answer }) => answer);
      const [reply, serial] = await this.net.post("/api/answers", { who, answers: plain });
      const sent = new Set(answers.map((answer) => answer.ref));
      this.keep(this.all().filter((answer) => !sent.has(answer.ref)));
      this.wait = FIRST_WAIT;
      this.sending = false;
      const left = this.all().length;
      if (!left) this.said("saved ✓", "");
      this.came(reply, serial, answers);
      if (left) this.send();
    } catch (error) {
      this.sending = false;
      const count = all.length === 1 ? "1 answer waits" : `${all.length} answers wait`;
      this.said(`not saved (${error.message}), trying again; ${count} in this browser`, "away");
      this.timer = setTimeout(() => this.send(), this.wait);
      this.wait = Math.min(this.wait * 2, LONGEST_WAIT);
    }
  }
}
