// Many questions with the same guess. Those of which the model is sure are ticked, a click changes a tick, Enter
// confirms the ticked ones.
import { $, altText, load, make } from "./dom.js";
import { address, wordText } from "./show.js";

export class Grid {
  // answer(ids, word) submits answers; idle() waits until they are on disk; onQuestion(question) receives each.
  constructor(net, answer, idle, onQuestion) {
    this.net = net;
    this.answer = answer;
    this.idle = idle;
    this.onQuestion = onQuestion;
    this.tiles = new Map(); // question id -> button
    $("accept").addEventListener("click", () => this.accept());
    $("select-all").addEventListener("click", () => {
      const selected = !this.selected().length;
      for (const tile of this.tiles.values()) this.select(tile, selected);
    });
  }

  async open(info, annotator, guess = "") {
    this.info = info;
    this.annotator = annotator;
    const [found] = await this.net.get("/api/grid", { annotator, guess });
    this.guess = found.guess;
    found.questions.forEach(this.onQuestion);
    $("guesses").replaceChildren(
      ...found.guesses.map(([name, count]) => {
        const pressed = String(name === found.guess);
        const button = make("button", { type: "button", "aria-pressed": pressed }, `${name} (${count})`);
        button.addEventListener("click", () => this.open(info, annotator, name));
        if (name === found.guess) [this.button, this.left] = [button, count];
        return button;
      }),
    );
    this.tiles = new Map(found.questions.map((question) => [question.id, this.tile(question)]));
    $("tiles").replaceChildren(...this.tiles.values());
    const unsure = found.questions.some((one) => !one.acceptable);
    const help = `The model guesses ${this.guess} for all of these. ` + (unsure
      ? "Where it is not sure, there is no tick. Tick all that are right, then confirm. "
      : "Click the wrong ones to remove their ticks, then confirm. ");
    $("many-help").replaceChildren(...(found.questions.length
      ? [help, make("span", {}, "For another class, press its key on the framed image; Tab moves on.")]
      : ["Nothing left to confirm."]));
    this.count();
    $("tiles").firstElementChild?.focus();
    return found.questions.length > 0;
  }

  tile(question) {
    const image = load(address(this.info, question, "tile"), altText(question));
    const button = make("button", { type: "button", class: "tile", title: question.id },
      image, make("mark", { "aria-hidden": "true" }));
    this.mark(button, question.acceptable);
    button.addEventListener("click", () => this.select(button, button.getAttribute("aria-pressed") !== "true"));
    return button;
  }

  mark(button, selected) {
    button.setAttribute("aria-pressed", String(selected));
    button.querySelector("mark").textContent = selected ? "✓" : "";
  }

  select(button, selected) {
    this.mark(button, selected);
    this.count();
  }

  selected() {
    return [...this.tiles].filter(([, tile]) => tile.getAttribute("aria-pressed") === "true").map(([id]) => id);
  }

  count() {
    const count = this.selected().length;
    $("accept").disabled = !count;
    $("select-all").textContent = count ? "Clear all ticks" : "Tick all";
    $("accept").replaceChildren(make("kbd", {}, "Enter"), ` Label ${count} as ${this.guess}`);
  }

  async accept() {
    const ids = this.selected();
    if (!ids.length) return;
    this.answer(ids, this.guess);
    for (const id of ids) this.drop(id);
    if (!this.tiles.size) await this.reopen();
  }

  // Waits first: answers still being sent would be shown again.
  async reopen() {
    await this.idle();
    await this.open(this.info, this.annotator, this.guess);
  }

  drop(id) {
    this.tiles.get(id)?.remove();
    this.tiles.delete(id);
    this.button.textContent = `${this.guess} (${--this.left})`;
    this.count();
  }

  // Labels the tile in focus.
  answerFocused(word) {
    const found = [...this.tiles].find(([, tile]) => tile === document.activeElement);
    if (!found) return false;
    const [id, tile] = found;
    (tile.nextElementSibling ?? tile.previousElementSibling)?.focus();
    this.answer([id], word);
    this.drop(id);
    $("many-help").textContent = `${id}: ${wordText(word)}.`;
    if (!this.tiles.size) this.reopen();
    return true;
  }
}
