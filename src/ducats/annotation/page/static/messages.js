// Messages shown instead of a question, and notices about answers that do not count.
import { $, only } from "./dom.js";

const MESSAGES = {
  empty: ["No questions yet", "They will appear here automatically."],
  closed: ["Round ROUND is closed",
    "The model is learning from your answers. The next questions will appear here automatically."],
  complete: ["Round ROUND is complete",
    "Thank you! All questions of this round are answered. The next ones will appear here as soon as the model has " +
    "learned from them. Until it starts, you can undo your last answer.\nIf you started the run yourself: with " +
    "--wait it resumes automatically, otherwise run the same command again."],
  labelled: ["All images are labelled",
    "Thank you! You can still undo your last answer. To train a model with all labels, press Ctrl-C where `ducats " +
    "label` was started."],
  finished: ["All done", "Thank you! There are no more questions."],
  saving: ["Saving…", "If the server cannot be reached, your answers stay in this browser until it can."],
  others: ["Nothing left for you to answer",
    "Other people still have questions to answer. This page updates automatically."],
  maps: ["This round is answered with images, not on this page",
    "It asks for the class of very many pixels: paint them and save the result as PNG files. README.txt in the " +
    "round's folder explains how."],
};

const REJECTIONS = {
  late: "Too late: this round was already closed. Your answer was saved but does not count.",
  "unknown class":
    "This class is not on the list, so your answer does not count. The question will come again.",
  "unknown question": "Your answer does not count: this question is no longer asked.",
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
  $("last-undo").hidden = !["complete", "labelled", "others"].includes(state);
  $("message").querySelector("h1").textContent = title.replace("ROUND", round);
  $("message").querySelector("p").textContent = text;
}
