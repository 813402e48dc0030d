// Many questions of one guess at once: all are marked, a click unmarks an exception, one key says the rest.
import { $, load, make } from "./dom.js";
import { address, saying } from "./show.js";

export class Grid {
  // answer(ids, word) puts answers down; idle() waits until they are on disk; told(question) is shown each.
  constructor(net, answer, idle, told) {
    this.net = net;
    this.answer = answer;
    this.idle = idle;
    this.told = told;
    this.tiles = new Map(); // question's id -> its button
    $("accept").addEventListener("click", () => this.accept());
    $("turn").addEventListener("click", () => {
      const marked = !this.marked().length;
      for (const tile of this.tiles.values()) this.mark(tile, marked);
    });
  }

  async open(info, who, guess = "") {
    this.info = info;
    this.who = who;
    const [found] = await this.net.get("/api/grid", { who, guess });
    this.guess = found.guess;
    found.questions.forEach(this.told);
    $("guesses").replaceChildren(
      ...found.guesses.map(([name, count]) => {
        const pressed = String(name === found.guess);
        const button = make("button", { type: "button", "aria-pressed": pressed }, `${name} (${count})`);
        button.addEventListener("click", () => this.open(info, who, name));
        return button;
      }),
    );
    this.tiles = new Map(found.questions.map((question) => [question.id, this.tile(question)]));
    $("tiles").replaceChildren(...this.tiles.values());
    $("many-help").textContent = found.questions.length
      ? `The model takes these for ${this.guess}. Click those that are not; Enter says that the marked ones are. ` +
        "A class's key answers the one that is in focus."
      : "No guess is left to look at.";
    this.count();
    $("tiles").firstElementChild?.focus();
    return found.questions.length > 0;
  }

  tile(question) {
    const image = load(address(this.info, question, "tile"), `${question.number}: ${question.id}`);
    const button = make("button", { type: "button", class: "tile", "aria-pressed": "true", title: question.id },
      image, make("mark", { "aria-hidden": "true" }, "✓"));
    button.addEventListener("click", () => this.mark(button, button.getAttribute("aria-pressed") !== "true"));
    return button;
  }

  mark(button, marked) {
    button.setAttribute("aria-pressed", String(marked));
    button.querySelector("mark").textContent = marked ? "✓" : "✗";
    this.count();
  }

  marked() {
    return [...this.tiles].filter(([, tile]) => tile.getAttribute("aria-pressed") === "true").map(([id]) => id);
  }

  count() {
    const count = this.marked().length;
    $("accept").disabled = !count;
    $("turn").textContent = count ? "unmark all" : "mark all";
    const text = count === 1 ? ` the marked one is ${this.guess}` : ` the ${count} marked ones are ${this.guess}`;
    $("accept").replaceChildren(make("kbd", {}, "Enter"), text);
  }

  async accept() {
    const ids = this.marked();
    if (!ids.length) return;
    this.answer(ids, this.guess);
    for (const id of ids) this.drop(id);
    if (!this.tiles.size) await this.reopen();
  }

  // What is still on its way would be shown again.
  async reopen() {
    await this.idle();
    await this.open(this.info, this.who, this.guess);
  }

  drop(id) {
    this.tiles.get(id)?.remove();
    this.tiles.delete(id);
    this.count();
  }

  // A class's key: for the tile in focus.
  say(word) {
    const found = [...this.tiles].find(([, tile]) => tile === document.activeElement);
    if (!found) return false;
    const [id, tile] = found;
    (tile.nextElementSibling ?? tile.previousElementSibling)?.focus();
    this.answer([id], word);
    this.drop(id);
    $("many-help").textContent = `${id}: ${saying(word)}.`;
    if (!this.tiles.size) this.reopen();
    return true;
  }
}
