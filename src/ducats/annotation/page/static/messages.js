// Messages shown instead of a question, and notices about answers that do not count.
import { $, only } from "./dom.js";

const MESSAGES = {
  empty: ["No questions yet", "The run has not asked any questions yet. They will appear here automatically."],
  closed: ["Round ROUND is closed",
    "The model is being trained with your answers. The next round will appear here automatically."],
  complete: ["Round ROUND is complete",
    "Thank you. If the run was started with --wait, it continues automatically. Otherwise, give the same ducats run " +
    "command again.\nThe next round will appear here. You can undo your last answer until the run continues."],
  finished: ["The run is finished", "There are no more questions."],
  saving: ["Saving…", "If the server cannot be reached, your answers stay in this browser until it can."],
  others: ["Nothing left for you to answer",
    "Other people still have questions to answer. This page updates automatically."],
  maps: ["This round needs label PNGs",
    "It asks for the class of very many pixels, which cannot be answered on this page. Put label PNGs into the " +
    "round's folder; README.txt in that folder explains how."],
};

const REJECTIONS = {
  late: "Too late: this round was already closed. Your answer was saved but does not count.",
  "unknown class":
    "This class does not exist in this run, so your answer does not count. The question will come again.",
  "unknown question": "Your answer does not count: its question is not part of this run.",
};

// Explains why answers do not count; empty if all do.
export function rejection(reasons) {
  if (!reasons.length) return "";
  const known = Object.keys(REJECTIONS).find((reason) => reasons.includes(reason));
  return known ? REJECTIONS[known] : `Your answer does not count (${reasons.join(", ")}).`;
}

export function showMessage(state, round) {
  const [title, text] = MESSAGES[state];
  only("message");
  document.body.dataset.shown = "";
  document.body.dataset.state = state;
  $("last-undo").hidden = !["complete", "others"].includes(state);
  $("message").querySelector("h1").textContent = title.replace("ROUND", round);
  $("message").querySelector("p").textContent = text;
}
