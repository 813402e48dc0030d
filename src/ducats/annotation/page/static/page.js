// Page controller: state, server polling and user actions.
import { Clock } from "./clock.js";
import { $, altText, capitalised, load, make, only, remember, remembered } from "./dom.js";
import { Grid } from "./grid.js";
import { listen } from "./keys.js";
import { rejection, showMessage } from "./messages.js";
import { Net } from "./net.js";
import { Outbox } from "./outbox.js";
import { Review } from "./review.js";
import * as show from "./show.js";

const PRELOAD = 5, POLL_FAST_MS = 2000, POLL_SLOW_MS = 10000;
const LEARNING_MS = 800; // longest wait for a question that is chosen with the latest answer
const net = new Net(), clock = new Clock();
const outbox = new Outbox(net, showStatus, onReply);
const grid = new Grid(net, submit, () => outbox.idle(), (one) => received.set(one.id, one));
const review = new Review(net);
let info = null; // latest state from the server
let annotator = remembered("ducats.who");
let current = null; // question shown now
let origin = null; // question from which the grid was opened
let queue = []; // next questions
let past = []; // acts that can be undone: {ids, number of the first, word if known}
let answered = new Map(); // question -> serial up to which a reply may still list it as open
const received = new Map(); // question id -> latest data from the server
const images = new Map(); // URL -> preloaded image
let ready = false; // the image is visible, so the question can be answered
let mode = "one", zoom = 0, context = false, together = false;
let polling, learning;

function showStatus(text, kind) {
  $("saved").textContent = text;
  $("saved").className = kind;
}

function notice(text) {
  $("notice").textContent = text;
  $("notice").hidden = !text;
}

// -- server replies ---------------------------------------------------------------------------------

async function poll() {
  clearTimeout(polling);
  try {
    const [reply, serial] = await net.get("/api/state", { annotator });
    if ($("saved").classList.contains("offline")) {
      showStatus("", "");
      outbox.retry();
    }
    await apply(reply, serial);
  } catch (error) {
    // With answers waiting, the outbox shows its own status.
    if (!outbox.name || !outbox.all().length) showStatus(capitalised(error.message), "offline");
  }
  const busy = info?.state === "asking" && current;
  polling = setTimeout(poll, busy || document.hidden ? POLL_SLOW_MS : POLL_FAST_MS);
  pollWhileLearning();
}

// The reply to an answer does not wait long for the model: fetch what it has learnt.
function pollWhileLearning() {
  if (!show.isLearning(info)) return;
  clearTimeout(polling);
  polling = setTimeout(poll, LEARNING_MS);
}

function onReply(reply, serial, sent) {
  for (const answer of sent) if (!outbox.pending().has(answer.question)) answered.set(answer.question, net.serial);
  const waiting = outbox.pending();
  apply(reply, serial, new Set(sent.map((answer) => answer.question).filter((id) => !waiting.has(id))));
  pollWhileLearning();
  const rejected = rejection([...new Set(Object.values(reply.rejected))]);
  if (rejected) notice(rejected); // last: a new round clears earlier notices
}

// known: questions for which this reply is certainly up to date.
async function apply(reply, serial, known = new Set()) {
  const first = info === null;
  if ((!first && serial < info.serial) || mode === "review") return;
  const fresh = first || reply.stamp !== info.stamp;
  const newClass = !fresh && reply.rules?.classes.length !== info.rules?.classes.length;
  info = { ...reply, serial };
  if (first && (await begin())) return;
  for (const [question, upto] of answered) if (serial > upto) answered.delete(question);
  if (fresh) {
    [current, queue, past, answered] = [null, [], [], new Map()];
    received.clear();
    notice("");
    leaveGrid();
    if (info.rules) await loadUndo();
  }
  if (info.rules && (fresh || newClass)) {
    show.classes(info, (name) => answer(name));
    if (current) show.panel(current);
  }
  if (info.counts) show.progress(info);
  const waiting = outbox.pending();
  const open = (one) => (!answered.has(one.id) || known.has(one.id)) && !waiting.has(one.id);
  queue = info.next.filter((one) => open(one) && one.id !== current?.id);
  for (const one of info.next) received.set(one.id, one);
  const now = info.next.find((one) => one.id === current?.id);
  if (now && !together) current.together = now.together;
  $("review-button").hidden = !info.reviewable;
  $("grid-button").hidden = info.state !== "asking" || info.blind || !info.next.some((one) => one.guess);
  if (mode === "grid" && info.state === "asking") return;
  leaveGrid();
  if (!current || info.state !== "asking") return showNext();
  updateViewButtons();
  preload();
}

// Returns whether the state must be fetched again under another name.
async function begin() {
  const before = annotator;
  annotator = info.annotator || annotator;
  $("annotator-button").disabled = Boolean(info.annotator);
  outbox.open(info.personal ? `${info.run}.${annotator}` : info.run); // others may use this browser, too
  if (!annotator) await askName();
  $("annotator-button").textContent = annotator;
  $("annotator-button").hidden = false;
  if (annotator === before || info.annotator) return false;
  info = null;
  setTimeout(poll);
  return true;
}

async function loadUndo() {
  try {
    const [{ recent }] = await net.get("/api/recent", { annotator });
    past = recent.map((group) => ({ ids: group.map((one) => one.id), number: group[0].number }));
  } catch { /* offline: nothing to undo yet */ }
}

function askName() {
  const dialog = $("ask-name");
  $("name").value = annotator;
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.querySelector("form").onsubmit = (event) => {
      event.preventDefault();
      annotator = $("name").value.trim();
      if (!annotator) return;
      remember("ducats.who", annotator);
      dialog.close();
      resolve();
    };
    dialog.oncancel = (event) => annotator || event.preventDefault();
  });
}

// -- display --------------------------------------------------------------------------------------

function showNext() {
  current = queue.shift() ?? null;
  if (current) return showCurrent();
  const idle = outbox.all().length ? "saving" : "others";
  const complete = info.live && info.state === "complete" ? "labelled" : info.state;
  const state = info.state === "asking" ? idle : complete;
  showMessage(state, info.round);
  clearTimeout(polling);
  polling = setTimeout(poll, POLL_FAST_MS);
}

function imageUrl(question) {
  const pixels = question.pixels !== null;
  const more = together && question === current ? { together: 1, annotator, n: question.together.length } : {};
  if (!pixels) return show.address(info, question, "whole");
  if (context && question === current) return show.address(info, question, "context", more);
  return show.address(info, question, "crop", { ...more, zoom });
}

function imageOf(question) {
  const url = imageUrl(question);
  if (!images.has(url)) images.set(url, load(url, altText(question)));
  while (images.size > 4 * PRELOAD) images.delete(images.keys().next().value);
  return images.get(url);
}

function preload() {
  for (const question of queue.slice(0, PRELOAD)) imageOf(question);
  if (queue[0]?.pixels) new Image().src = show.address(info, queue[0], "context");
}

function showCurrent() {
  ready = false;
  current.together = current.together.filter((id) => !answered.has(id));
  context = together = false;
  only("one");
  document.body.dataset.state = info.state;
  show.panel(current);
  $("view").hidden = current.pixels === null;
  $("wanted").value = $("name-of-class").value = "";
  show.filter("");
  // Move focus off the pressed button, or Enter would press it again.
  const searching = !$("search").hidden && !matchMedia("(pointer: coarse)").matches; // no on-screen keyboard
  $(searching ? "wanted" : "image").focus({ preventScroll: true });
  redraw();
  preload();
}

function updateViewButtons() {
  const others = current.together.length;
  $("context").setAttribute("aria-pressed", String(context));
  $("together").hidden = !others;
  $("together").replaceChildren(`All ${others + 1} `, make("span", {}, "in this area "), make("kbd", {}, "a"));
  $("together").setAttribute("aria-pressed", String(together));
}

async function redraw() {
  const question = current, image = imageOf(question);
  updateViewButtons();
  show.map(info, question, context);
  const result = await show.display(image);
  if (question !== current || image !== images.get(imageUrl(question))) return;
  if (result === "offline") {
    ready = false;
    images.delete(imageUrl(question));
    setTimeout(() => question === current && redraw(), POLL_FAST_MS / 4);
    return;
  }
  if (!ready) clock.start();
  ready = true;
  document.body.dataset.shown = question.id;
}

// -- user actions ------------------------------------------------------------------------------------

function submit(ids, word) {
  outbox.put(annotator, ids, word, clock.take());
  past.push({ ids, word, number: received.get(ids[0])?.number });
  for (const id of ids) answered.set(id, Infinity);
  queue = queue.filter((one) => !answered.has(one.id));
  if (ids.includes(current?.id)) current = null; // also when hidden behind the grid
  if (mode === "grid") clock.start();
}

function answer(word) {
  if (mode === "grid") return grid.answerFocused(word);
  if (!ready || !current) return;
  notice("");
  if (mode === "review") return decide(word);
  const ids = together ? [current.id, ...current.together] : [current.id];
  ready = false;
  submit(ids, word);
  if (!info.live) return showNext();
  // The reply has the next question, chosen by a model that has learnt from this answer.
  clearTimeout(learning);
  learning = setTimeout(() => current || showNext(), LEARNING_MS);
}

async function undo() {
  if (mode === "review") return previous();
  const last = past.pop();
  if (!last) return notice("Nothing to undo.");
  notice("");
  let question = received.get(last.ids[0]);
  if (!question) {
    try {
      [question] = await net.get(`/api/question/${info.rules.round}/${last.number}`, { annotator });
    } catch (error) {
      past.push(last);
      return notice(`Undo failed: ${error.message}.`);
    }
  }
  if (last.word !== "skip") outbox.put(annotator, last.ids, "", null); // a skip has no effect on the server
  for (const id of last.ids) answered.delete(id);
  if (last.ids.length > 1) notice(`${last.ids.length} answers are withdrawn.`);
  if (mode === "grid") {
    if (last.ids.includes(origin?.id)) current = origin;
    return grid.reopen();
  }
  if (current) queue.unshift(current);
  current = last.word === "skip" ? question : { ...question, mine: null, votes: undefined };
  received.set(current.id, current);
  showCurrent();
}

async function openGrid() {
  if ($("grid-button").hidden || mode === "review") return;
  mode = "grid";
  origin = current;
  notice("");
  $("grid-button").setAttribute("aria-pressed", "true");
  only("many");
  document.body.dataset.state = "grid";
  try {
    await grid.open(info, annotator, current?.guess ?? "");
    clock.start();
  } catch (error) {
    notice(capitalised(error.message));
    leaveGrid();
  }
}

function leaveGrid() {
  if (mode !== "grid") return;
  mode = "one";
  $("grid-button").setAttribute("aria-pressed", "false");
  if (current) showCurrent();
  else showNext();
  poll();
}

async function toggleReview() {
  if (mode === "review") return leaveReview();
  if ($("review-button").hidden || mode !== "one") return;
  notice("");
  if ($("saved").classList.contains("offline")) return notice("Your answers must be saved first.");
  try {
    await outbox.idle();
    if (!(await review.load(annotator))) return notice("Nothing to review: no answer is suspicious.");
  } catch (error) {
    return notice(capitalised(error.message));
  }
  mode = "review";
  $("grid-button").hidden = true;
  $("review-button").setAttribute("aria-pressed", "true");
  showReviewed();
}

function showReviewed() {
  info = { ...info, ...review.round, state: "review" };
  show.classes(info, (name) => answer(name));
  $("another").hidden = true; // new classes are for questions that are asked
  show.reviewProgress(review.item, review.index, review.items.length);
  current = review.item;
  queue = review.items.slice(review.index + 1).filter((one) => one.round === current.round);
  showCurrent();
}

async function decide(word) {
  if (word === "unsure") return;
  if (word !== "skip") {
    ready = false;
    showStatus("Saving…", "waiting");
    try {
      notice(await review.decide(annotator, word));
      showStatus("Saved ✓", "");
    } catch (error) {
      ready = true;
      showStatus("", "");
      return notice(`Not saved: ${error.message}`);
    }
  }
  if (mode !== "review") return;
  if (review.step(1)) showReviewed();
  else leaveReview();
}

function previous() {
  if (mode !== "review") return;
  review.step(-1);
  showReviewed();
}

function leaveReview() {
  if (mode !== "review") return;
  mode = "one";
  current = null;
  info.stamp = null; // the next state starts afresh
  $("review-button").setAttribute("aria-pressed", "false");
  $("round").textContent = "ducats";
  $("counts").textContent = "";
  $("progress").hidden = true;
  poll();
}

function accept() {
  if (mode === "review") return current.review.label && answer(current.review.label);
  if (!current?.guess) return;
  if (current.acceptable) answer(current.guess);
  else notice(show.classWanted(current));
}

function zoomBy(step) {
  if (!current || current.pixels === null) return;
  zoom = Math.max(-6, Math.min(4, zoom + step));
  context = false;
  redraw();
}

function toggle(option) {
  if (!current || current.pixels === null) return;
  if (option === "context") context = !context;
  else if (current.together.length) together = !together;
  redraw();
}

async function rename() {
  await askName();
  location.reload(); // questions depend on the annotator: start again under the new name
}

const inGrid = () => mode === "grid";
const className = (key) => info?.rules?.classes.find((one) => one.key === key)?.name;
listen({ accept, answer, className, grid, inGrid, leaveGrid, leaveReview, openGrid, previous, rename, toggle, toggleReview,
  undo, zoomBy });
document.addEventListener("visibilitychange", () => document.hidden || poll());
history.replaceState(null, "", "/"); // hide the token: it is in a cookie now
poll();
