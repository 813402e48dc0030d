// Shows one question: its picture, what the model thinks, and the classes.
import { $, make, minutes, percent } from "./dom.js";

const WORDS = { void: "none of these", unsure: "unsure" };
export const saying = (word) => WORDS[word] ?? word;

export function address(info, question, view, more = {}) {
  const query = new URLSearchParams({ s: info.stamp, ...more });
  return `/picture/${view}/${info.terms.round}/${question.number}?${query}`;
}

export function progress(info) {
  const { all, settled, disputed, mine, seconds } = info.counts;
  const parts = [`${settled} of ${all} done`];
  if (mine) parts.push(`${mine} by you`);
  if (disputed) parts.push(`${disputed} disputed`);
  if (settled >= 5 && settled < all && !info.terms.seconds && seconds) {
    parts.push(`about ${minutes((seconds / settled) * (all - settled))} to go`);
  }
  if (info.terms.seconds) parts.push(`${minutes(info.terms.seconds - seconds)} of people's time left`);
  $("round").textContent = `Round ${info.terms.round}`;
  $("counts").textContent = parts.join(" · ");
  const bar = $("progress");
  bar.hidden = false;
  bar.setAttribute("aria-valuemax", all);
  bar.setAttribute("aria-valuenow", settled);
  $("done").style.width = `${(100 * settled) / Math.max(all, 1)}%`;
}

export function classes(info, take) {
  const searched = info.terms.classes.some((one) => one.key === null);
  $("search").hidden = !searched;
  $("another").hidden = !info.terms.newClasses;
  $("classes").replaceChildren(
    ...info.terms.classes.map((one) => {
      const dot = info.terms.unit === "image" ? null : make("i", { "aria-hidden": "true" });
      if (dot) dot.style.background = one.colour;
      const button = make("button", { type: "button", "data-name": one.name },
        one.key && make("kbd", {}, one.key), dot, make("span", {}, one.name));
      button.addEventListener("click", () => take(one.name));
      return button;
    }),
  );
  $("void-key").textContent = info.terms.voidKey;
  $("void-key").hidden = searched && begins(info.terms.voidKey);
  const why = $("why");
  const said = [info.terms.query && `Chosen by ${info.terms.query}.`, info.terms.why].filter(Boolean).join(" ");
  why.hidden = !said;
  why.querySelector("p").textContent = said;
}

// Whether a class's name begins so.
export const begins = (text) => [...$("classes").children].some((one) => one.dataset.name.startsWith(text));

// Keeps the buttons that fit what was typed; the first of them is what Enter takes.
export function filter(text) {
  const wanted = text.trim().toLowerCase();
  const buttons = [...$("classes").children];
  const rank = (name) => (name.startsWith(wanted) ? 0 : name.includes(wanted) ? 1 : 2);
  const fits = buttons
    .map((button) => [rank(button.dataset.name.toLowerCase()), button])
    .filter(([place]) => place < 2)
    .sort(([a], [b]) => a - b)
    .map(([, button]) => button);
  for (const button of buttons) {
    button.hidden = !fits.includes(button);
    button.classList.toggle("first", Boolean(wanted) && button === fits[0]);
  }
  return wanted ? fits[0]?.dataset.name : undefined;
}

function bar(share) {
  const inner = make("i");
  inner.style.width = `${100 * share}%`;
  return make("dt", { "aria-hidden": "true" }, inner);
}

export function panel(info, question) {
  const guess = $("guess");
  guess.hidden = !question.guess;
  if (question.guess) {
    const sure = question.probability === null ? "the model's guess" : `the model: ${percent(question.probability)}`;
    guess.replaceChildren(make("b", {}, question.guess), make("small", {}, sure), make("kbd", {}, "Enter"));
    guess.setAttribute("aria-label", `accept the model's guess: ${question.guess}`);
  }
  const others = info.terms.unit === "image" ? " of the pool" : " of this image";
  const rows = [["foreign", question.foreign], ["ambiguous", question.ambiguous]]
    .filter(([, share]) => Number.isFinite(share))
    .flatMap(([how, share]) => [bar(share),
      make("dd", {}, `more ${how} than ${percent(share)}`, make("span", {}, others))]);
  $("sure").replaceChildren(...rows);
  $("sure").hidden = !rows.length;
  for (const button of $("classes").children) {
    button.classList.toggle("guessed", button.dataset.name === question.guess);
    button.setAttribute("aria-pressed", String(button.dataset.name === question.mine));
  }
  const votes = question.votes ?? [];
  $("votes").hidden = !votes.length;
  $("votes").textContent =
    `Disputed: ${votes.map((vote) => `${vote.who} says ${saying(vote.word)}`).join(", ")}. ` +
    (question.mine ? "Say it again, or change your mind." : "What do you say?");
  $("again").hidden = !question.mine || votes.length > 0;
  $("again").textContent = `You said: ${saying(question.mine)}.`;
  const gone = question.gone ? " · the image's own file is gone: this is what was kept of it" : "";
  const size = question.pixels > 1 ? ` · ${question.pixels} pixels` : "";
  // Blind: a name may tell, as folders that are called after classes do.
  const name = "guess" in question ? `: ${question.id}` : "";
  $("caption").textContent = `${question.number}${name}${size}${gone}`;
}

// Where it is in the whole image, as long as the whole image is not in sight itself.
export function map(info, question, context) {
  $("map").hidden = question.pixels === null || context;
  if (!$("map").hidden) $("map").src = address(info, question, "context");
}

// Whether the picture is in sight, is gone, or cannot be had as long as the server is away.
export async function picture(image) {
  const stage = $("picture");
  stage.replaceChildren(image);
  if (await image.ready) return "seen";
  const status = await fetch(image.src, { method: "HEAD" }).then((reply) => reply.status, () => 0);
  const text = status === 404 ? "The picture is not there any more: skip it, or answer “none of these”."
    : "Waiting for the server …";
  if (image.parentNode === stage) stage.replaceChildren(make("p", {}, text));
  return status === 404 ? "gone" : "away";
}
