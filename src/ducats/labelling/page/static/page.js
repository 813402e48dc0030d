// The page: what is shown now, what each key does, and when the server is asked.
import { Clock } from "./clock.js";
import { $, load, make, only, remember, remembered } from "./dom.js";
import { Grid } from "./grid.js";
import { listen } from "./keys.js";
import { say } from "./messages.js";
import { Net } from "./net.js";
import { Outbox } from "./outbox.js";
import * as show from "./show.js";

const AHEAD = 5, OFTEN = 2000, SELDOM = 10000; // pictures; milliseconds
const net = new Net(), clock = new Clock();
const outbox = new Outbox(net, saved, came);
const grid = new Grid(net, put, () => outbox.idle(), (one) => seen.set(one.id, one));
let info = null; // what the server told last
let who = remembered("ducats.who");
let current = null; // the question in sight, and the next ones
let queue = [];
let past = []; // what can be undone: {ids, number of the first, word if this page knows it}
let answered = new Map(); // question -> up to which reply it may still be told as open
const seen = new Map(); // question -> what the server told of it
const pictures = new Map(); // address -> picture, loaded ahead
let ready = false; // the picture is in sight: it can be answered
let mode = "one", zoom = 0, context = false, together = false;
let polling;

function saved(text, kind) {
  $("saved").textContent = text;
  $("saved").className = kind;
}

function notice(text) {
  $("notice").textContent = text;
  $("notice").hidden = !text;
}

// -- what the server tells ---------------------------------------------------------------------------------

async function poll() {
  clearTimeout(polling);
  try {
    const [told, serial] = await net.get("/api/state", { who });
    if ($("saved").classList.contains("away")) {
      saved("", "");
      outbox.retry();
    }
    await apply(told, serial);
  } catch (error) {
    if (!outbox.name || !outbox.all().length) saved(error.message, "away"); // else it says more itself
  }
  const busy = info?.state === "asking" && current;
  polling = setTimeout(poll, busy || document.hidden ? SELDOM : OFTEN);
}

function came(told, serial, sent) {
  for (const answer of sent) if (!outbox.pending().has(answer.question)) answered.set(answer.question, net.serial);
  const waiting = outbox.pending();
  apply(told, serial, new Set(sent.map((answer) => answer.question).filter((id) => !waiting.has(id))));
  const refused = new Set(Object.values(told.refused)); // said last: a round that has ended takes its notices along
  if (refused.has("late")) notice("Too late: the run had closed this round already. It is on record and does not count.");
  else if (refused.has("no class")) notice("That is no class of this run, so it does not count: the question comes again.");
  else if (refused.size) notice(`An answer does not count: ${[...refused].join(", ")}.`);
}

// known: questions of which this reply surely tells the newest.
async function apply(told, serial, known = new Set()) {
  const first = info === null;
  if (!first && serial < info.serial) return;
  const fresh = first || told.stamp !== info.stamp;
  info = { ...told, serial };
  if (first && (await begin())) return;
  for (const [question, upto] of answered) if (serial > upto) answered.delete(question);
  if (fresh) {
    [current, queue, past, answered] = [null, [], [], new Map()];
    seen.clear();
    notice("");
    leaveGrid();
    if (info.terms) show.classes(info, (name) => answer(name));
    if (info.terms) await recall();
  }
  if (info.counts) show.progress(info);
  const waiting = outbox.pending();
  const open = (one) => (!answered.has(one.id) || known.has(one.id)) && !waiting.has(one.id);
  queue = info.next.filter((one) => open(one) && one.id !== current?.id);
  for (const one of info.next) seen.set(one.id, one);
  const now = info.next.find((one) => one.id === current?.id);
  if (now && !together) current.together = now.together;
  $("grid-button").hidden = info.state !== "asking" || info.blind || !info.next.some((one) => one.guess);
  if (mode === "grid" && info.state === "asking") return;
  leaveGrid();
  if (!current || info.state !== "asking") return forward();
  buttons();
  ahead();
}

// Whether the server has to be asked again, as somebody else.
async function begin() {
  const before = who;
  who = info.who || who;
  $("who-button").disabled = Boolean(info.who);
  outbox.open(info.desk);
  if (!who) await askName();
  $("who-button").textContent = who;
  $("who-button").hidden = false;
  if (who === before || info.who) return false;
  info = null;
  setTimeout(poll);
  return true;
}

async function recall() {
  try {
    const [{ recent }] = await net.get("/api/recent", { who });
    past = recent.map((group) => ({ ids: group.map((one) => one.id), number: group[0].number }));
  } catch { /* nothing to undo until then */ }
}

function askName() {
  const dialog = $("ask-name");
  $("name").value = who;
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.querySelector("form").onsubmit = (event) => {
      event.preventDefault();
      who = $("name").value.trim();
      if (!who) return;
      remember("ducats.who", who);
      dialog.close();
      resolve();
    };
    dialog.oncancel = (event) => who || event.preventDefault();
  });
}

// -- what is in sight --------------------------------------------------------------------------------------

function forward() {
  current = queue.shift() ?? null;
  if (current) return look();
  const idle = outbox.all().length ? "saving" : "others";
  const state = info.state === "asking" ? idle : info.state;
  say(state, info.round);
  clearTimeout(polling);
  polling = setTimeout(poll, OFTEN);
}

function source(question) {
  const pixels = question.pixels !== null;
  const more = together && question === current ? { together: 1, who, n: question.together.length } : {};
  if (!pixels) return show.address(info, question, "whole");
  if (context && question === current) return show.address(info, question, "context", more);
  return show.address(info, question, "crop", { ...more, zoom });
}

function loaded(question) {
  const url = source(question);
  if (!pictures.has(url)) pictures.set(url, load(url, `${question.number}: ${question.id}`));
  while (pictures.size > 4 * AHEAD) pictures.delete(pictures.keys().next().value);
  return pictures.get(url);
}

function ahead() {
  for (const question of queue.slice(0, AHEAD)) loaded(question);
  if (queue[0]?.pixels) new Image().src = show.address(info, queue[0], "context");
}

function look() {
  ready = false;
  current.together = current.together.filter((id) => !answered.has(id));
  context = together = false;
  only("one");
  document.body.dataset.state = info.state;
  show.panel(info, current);
  $("view").hidden = current.pixels === null;
  $("wanted").value = $("name-of-class").value = "";
  show.filter("");
  // Not left on the button that was pressed: Enter would press it again.
  const searching = !$("search").hidden && !matchMedia("(pointer: coarse)").matches; // no keyboard that jumps up
  $(searching ? "wanted" : "picture").focus({ preventScroll: true });
  redraw();
  ahead();
}

function buttons() {
  const others = current.together.length;
  $("context").setAttribute("aria-pressed", String(context));
  $("together").hidden = !others;
  $("together").replaceChildren(`all ${others + 1} `, make("span", {}, "in this segment "), make("kbd", {}, "a"));
  $("together").setAttribute("aria-pressed", String(together));
}

async function redraw() {
  const question = current, image = loaded(question);
  buttons();
  show.map(info, question, context);
  const found = await show.picture(image);
  if (question !== current || image !== pictures.get(source(question))) return;
  if (found === "away") {
    ready = false;
    pictures.delete(source(question));
    setTimeout(() => question === current && redraw(), OFTEN / 4);
    return;
  }
  if (!ready) clock.start();
  ready = true;
  document.body.dataset.shown = question.id;
}

// -- what a person does ------------------------------------------------------------------------------------

function put(ids, word) {
  outbox.put(who, ids, word, clock.take());
  past.push({ ids, word, number: seen.get(ids[0])?.number });
  for (const id of ids) answered.set(id, Infinity);
  queue = queue.filter((one) => !answered.has(one.id));
  if (ids.includes(current?.id)) current = null; // also behind a grid
  if (mode === "grid") clock.start();
}

function answer(word) {
  if (mode === "grid") return grid.say(word);
  if (!ready || !current) return;
  notice("");
  const ids = together ? [current.id, ...current.together] : [current.id];
  ready = false;
  put(ids, word);
  forward();
}

async function undo() {
  const last = past.pop();
  if (!last) return notice("There is nothing to undo.");
  notice("");
  let question = seen.get(last.ids[0]);
  if (!question) {
    try {
      [question] = await net.get(`/api/question/${info.terms.round}/${last.number}`, { who });
    } catch (error) {
      past.push(last);
      return notice(`Not undone: ${error.message}.`);
    }
  }
  if (last.word !== "skip") outbox.put(who, last.ids, "", null); // a skip has said nothing
  for (const id of last.ids) answered.delete(id);
  if (mode === "grid") return grid.reopen();
  if (current) queue.unshift(current);
  current = last.word === "skip" ? question : { ...question, mine: null, votes: undefined };
  seen.set(current.id, current);
  look();
}

async function openGrid() {
  if ($("grid-button").hidden) return;
  mode = "grid";
  only("many");
  document.body.dataset.state = "grid";
  try {
    await grid.open(info, who, current?.guess ?? "");
    clock.start();
  } catch (error) {
    notice(error.message);
    leaveGrid();
  }
}

function leaveGrid() {
  if (mode !== "grid") return;
  mode = "one";
  if (current && answered.has(current.id)) current = null;
  if (current) look();
  else forward();
  poll();
}

function accept() {
  if (current?.guess) answer(current.guess);
}

function closer(step) {
  if (!current || current.pixels === null) return;
  zoom = Math.max(-6, Math.min(4, zoom + step));
  context = false;
  redraw();
}

function toggle(what) {
  if (!current || current.pixels === null) return;
  if (what === "context") context = !context;
  else if (current.together.length) together = !together;
  redraw();
}

async function rename() {
  await askName();
  location.reload(); // questions are told to a person: begin anew as the other one
}

const inGrid = () => mode === "grid";
const className = (key) => info?.terms?.classes.find((one) => one.key === key)?.name;
listen({ accept, answer, className, closer, grid, inGrid, leaveGrid, openGrid, rename, toggle, undo });
document.addEventListener("visibilitychange", () => document.hidden || poll());
history.replaceState(null, "", "/"); // the token leaves the address: it is in a cookie now
poll();
