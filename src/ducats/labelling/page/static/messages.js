// What the page says when there is no question to show.
import { $, only } from "./dom.js";

const MESSAGES = {
  empty: ["No questions yet", "The run has not asked anything so far. This page looks again by itself."],
  taken: ["Round ROUND is taken", "The run has the answers and trains on. The next round appears here by itself."],
  complete: ["Round ROUND is complete",
    "Thank you. A run that was started with --wait goes on by itself; otherwise give the same `ducats run` command " +
    "again.\nThe next round appears here by itself. Until the run takes the answers, the last one can be undone."],
  finished: ["The run has finished", "Nothing is left to answer."],
  saving: ["Saving …", "Your answers are on their way; they wait in this browser if the server is away."],
  others: ["Nothing is left for you", "Other people still have to answer. This page looks again by itself."],
  maps: ["The run needs label PNGs", "It asks for every pixel of an image, or for very many, which no key can say. Answer " +
    "with label PNGs in the round's folder: its README.txt says how."],
};

export function say(state, round) {
  const [title, text] = MESSAGES[state];
  only("message");
  document.body.dataset.shown = "";
  document.body.dataset.state = state;
  $("last-undo").hidden = !["complete", "others"].includes(state);
  $("message").querySelector("h1").textContent = title.replace("ROUND", round);
  $("message").querySelector("p").textContent = text;
}
