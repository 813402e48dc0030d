// Shows one question: its image, the model's guess and hints, and the classes.
import { $, altText, count, make, minutes, percent } from "./dom.js";

const WORDS = { void: "none of these", unsure: "not sure" };
export const wordText = (word) => WORDS[word] ?? word;

export function address(info, question, view, more = {}) {
  const query = new URLSearchParams({ s: info.stamp, ...more });
  return `/image/${view}/${info.rules.round}/${question.number}?${query}`;
}

// Shows what a model that learns from each answer knows so far.
export function learnt(live) {
  $("learnt").hidden = !live;
  $("advice").hidden = !live?.advice && !live?.error;
  if (!live) return;
  const accuracy = live.accuracy ? ` Accuracy on images it has not learnt from: ${live.accuracy}.` : "";
  $("advice").textContent = live.error
    ? `The model no longer learns (${live.error}). Answers are still saved: restart the command.`
    : `${live.advice}${accuracy}`;
  $("advice").className = live.error ? "failed" : "";
  const guesses = live.recent ? ` Its guess was right for ${live.recent_right} of the last ${live.recent} answers.` : "";
  $("learnt-text").textContent = live.classes.some((one) => one.predicted)
    ? `It is sure of ${count(live.sure)} of the other ${count(live.images - live.labels)} images.${guesses}${accuracy}`
    : "Nothing yet: it learns from your first answers.";
  $("learnt-classes").replaceChildren(...live.classes.map((one) => {
    const bar = make("i", { "aria-hidden": "true" });
    bar.style.width = `${100 * (one.certainty ?? 0)}%`;
    const sure = one.certainty === null ? "–" : percent(one.certainty);
    return make("tr", {}, make("th", { scope: "row" }, one.name), make("td", {}, count(one.labelled)),
      make("td", {}, count(one.predicted)), make("td", { class: "bar" }, bar, make("span", {}, sure)));
  }));
}

// Questions without a label now; the model may still be learning from the latest answers.
const openQuestions = (info) => info.counts.all - info.counts.settled;

export const isLearning = (info) =>
  Boolean(info?.live && !info.live.error && info.live.images - info.live.labels !== openQuestions(info));

function liveProgress(info) {
  const { images } = info.live, open = openQuestions(info);
  const labels = images - open, sure = Math.min(info.live.sure, open);
  const parts = [`${count(labels)} labelled`];
  if (info.counts.mine) parts.push(`${count(info.counts.mine)} by you`);
  if (info.counts.disputed) parts.push(`people disagree on ${info.counts.disputed}`);
  parts.push(isLearning(info) ? "the model is learning…" : `the model is sure of ${count(sure)} of ${count(open)}`);
  $("round").textContent = "Live";
  return [parts, labels + sure, images];
}

export function progress(info) {
  learnt(info.live);
  const [parts, done, all] = info.live ? liveProgress(info) : roundProgress(info);
  $("counts").textContent = parts.join(" · ");
  bar(done, all);
}

function bar(done, all) {
  $("progress").hidden = false;
  $("progress").setAttribute("aria-valuemax", all);
  $("progress").setAttribute("aria-valuenow", done);
  $("done").style.width = `${(100 * done) / Math.max(all, 1)}%`;
}

function roundProgress(info) {
  const { all, settled, disputed, mine, seconds } = info.counts;
  const parts = [`${settled} of ${all} done`];
  if (mine) parts.push(`${mine} by you`);
  if (disputed) parts.push(`people disagree on ${disputed}`);
  if (settled >= 5 && settled < all && !info.rules.maxSeconds && seconds) {
    parts.push(`about ${minutes((seconds / settled) * (all - settled))} left`);
  }
  if (info.rules.maxSeconds) parts.push(`${minutes(info.rules.maxSeconds - seconds)} of labelling time left`);
  $("round").textContent = `Round ${info.rules.round}`;
  return [parts, settled, all];
}

export function classes(info, choose) {
  const searched = info.rules.classes.some((one) => one.key === null);
  $("search").hidden = !searched;
  $("another").hidden = !info.rules.newClasses;
  $("classes").replaceChildren(
    ...info.rules.classes.map((one) => {
      const dot = info.rules.unit === "image" ? null : make("i", { "aria-hidden": "true" });
      if (dot) dot.style.background = one.colour;
      const button = make("button", { type: "button", "data-name": one.name },
        one.key && make("kbd", {}, one.key), dot, make("span", {}, one.name));
      button.addEventListener("click", () => choose(one.name));
      return button;
    }),
  );
  $("void-key").textContent = info.rules.voidKey;
  $("void-key").hidden = searched && startsClassName(info.rules.voidKey);
}

export const startsClassName = (text) => [...$("classes").children].some((one) => one.dataset.name.startsWith(text));

// Shows only the classes that match the typed text, and returns the best match.
export function filter(text) {
  const wanted = text.trim().toLowerCase();
  const buttons = [...$("classes").children];
  const rank = (name) => (name.startsWith(wanted) ? 0 : name.includes(wanted) ? 1 : 2);
  const matches = buttons
    .map((button) => [rank(button.dataset.name.toLowerCase()), button])
    .filter(([order]) => order < 2)
    .sort(([a], [b]) => a - b)
    .map(([, button]) => button);
  for (const button of buttons) {
    button.hidden = !matches.includes(button);
    button.classList.toggle("first", Boolean(wanted) && button === matches[0]);
  }
  return wanted ? matches[0]?.dataset.name : undefined;
}

const sureness = ({ probability }) => (probability === null ? "not sure" : `only ${percent(probability)} sure`);

// Says why Enter did not accept the guess.
export function classWanted(question) {
  const choose = $("search").hidden ? "press the key of the class you see" : "type the class you see";
  return `The model is ${sureness(question)} of ${question.guess}. Please look at the image and ${choose}.`;
}

// Says why an answer should be looked at again; nothing outside review mode.
function reviewed(review) {
  $("review").hidden = !review;
  if (!review) return;
  $("review").querySelector("p").textContent = review.label ? "Why look again:" : "There is no label yet:";
  $("review").querySelector("ul").replaceChildren(...review.reasons.map((reason) => make("li", {}, reason)));
}

export function reviewProgress(item, index, all) {
  $("round").textContent = "Review";
  const effect = item.review.closed ? "a change corrects the label" : "a change is your answer";
  $("counts").textContent = `${index + 1} of ${all} · round ${item.round}: ${effect}`;
  bar(index + 1, all);
}

export function panel(question) {
  const guess = $("guess");
  reviewed(question.review);
  guess.hidden = !question.guess || !question.acceptable || Boolean(question.review);
  $("weak-guess").hidden = !question.guess || question.acceptable || Boolean(question.review);
  $("weak-guess").textContent = `The model guesses ${question.guess}, but is ${sureness(question)}. Which class is it?`;
  if (!guess.hidden) {
    const sure = question.probability === null ? "" : `, ${percent(question.probability)} sure`;
    guess.replaceChildren(make("b", {}, question.guess), make("small", {}, `model's guess${sure}`),
      make("kbd", {}, "Enter"));
    guess.setAttribute("aria-label", `Accept the model's guess: ${question.guess}`);
  } else if (question.review?.label) {
    guess.hidden = false;
    guess.replaceChildren(make("b", {}, wordText(question.review.label)), make("small", {}, "confirm the label"),
      make("kbd", {}, "Enter"));
    guess.setAttribute("aria-label", `Confirm the label: ${wordText(question.review.label)}`);
  }
  $("why").hidden = Boolean(question.review);
  $("why").querySelector("p").textContent = question.why;
  for (const button of $("classes").children) {
    button.classList.toggle("guessed", button.dataset.name === question.guess);
    button.setAttribute("aria-pressed", String(button.dataset.name === (question.review ? question.review.label : question.mine)));
  }
  const votes = question.votes ?? [];
  $("votes").hidden = !votes.length || Boolean(question.review);
  $("votes").textContent =
    `People disagree: ${votes.map((vote) => `${vote.annotator} chose ${wordText(vote.word)}`).join(", ")}. ` +
    "Please confirm or change your answer.";
  $("again").hidden = !question.mine || votes.length > 0 || Boolean(question.review);
  $("again").textContent = `Your answer so far: ${wordText(question.mine)}.`;
  const gone = question.gone ? " · the original file is missing, this is a saved copy" : "";
  const size = question.pixels > 1 ? ` · ${question.pixels} pixels` : "";
  $("caption").textContent = `${altText(question)}${size}${gone}`;
}

// Shows the position in the whole image, unless the whole image is shown anyway.
export function map(info, question, context) {
  $("map").hidden = question.pixels === null || context;
  if (!$("map").hidden) $("map").src = address(info, question, "context");
}

// Returns "shown", "gone", or "offline" while the server cannot be reached.
export async function display(image) {
  const stage = $("image");
  stage.replaceChildren(image);
  if (await image.ready) return "shown";
  const status = await fetch(image.src, { method: "HEAD" }).then((reply) => reply.status, () => 0);
  const text = status === 404 ? "This image no longer exists. Skip it, or answer “None of these”."
    : "Waiting for the server…";
  if (image.parentNode === stage) stage.replaceChildren(make("p", {}, text));
  return status === 404 ? "gone" : "offline";
}
