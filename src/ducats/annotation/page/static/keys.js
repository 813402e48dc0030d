// Keyboard shortcuts and buttons.
import { $ } from "./dom.js";
import { filter, startsClassName } from "./show.js";

export function listen(page) {
  const { accept, answer, toggle, undo, zoomBy } = page;
  const actions = {
    u: undo, Backspace: undo,
    s: () => answer("skip"), ArrowRight: () => answer("skip"),
    "?": () => answer("unsure"), 0: () => answer("void"), x: () => answer("void"),
    "+": () => zoomBy(1), "=": () => zoomBy(1), "-": () => zoomBy(-1),
    o: () => toggle("context"), a: () => toggle("together"),
    g: page.openGrid, n: () => $("another").hidden || $("name-of-class").focus(),
    "/": () => $("search").hidden || $("wanted").focus(),
    Enter: accept, " ": accept,
    r: page.toggleReview, Escape: page.leaveReview, ArrowLeft: page.previous,
  };
  const gridActions = {
    u: undo, Backspace: undo, "?": actions["?"], 0: actions[0], x: actions.x, s: actions.s, g: page.leaveGrid,
    Escape: page.leaveGrid, Enter: () => page.grid.accept(),
  };

  function act(event, available) {
    const low = event.key.toLowerCase();
    const name = page.className(low);
    const action = available[event.key] ?? available[low]; // shift or caps lock
    if (name === undefined && !action) return;
    event.preventDefault();
    if (name === undefined) action();
    else answer(name);
  }

  document.addEventListener("keydown", (event) => {
    const { target, key } = event;
    // A key held down would answer questions nobody has looked at.
    if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || $("ask-name").open) return;
    if (target.matches?.("input")) {
      if (key === "Escape") target.blur();
      // In an empty search field, keys that cannot start a class name keep their action.
      const free = target.id === "wanted" && !target.value && !/^[a-z/]$/i.test(key) && !startsClassName(key);
      if (free && key in actions) act(event, actions);
    } else if (page.inGrid()) {
      if (key !== "Enter" || target.matches?.(".tile") || target.tagName !== "BUTTON") act(event, gridActions);
    } else if (!target.closest?.("button, summary") || (key !== "Enter" && key !== " ")) {
      act(event, actions); // Enter and space on a button press it
    }
  });

  const click = (id, act) => $(id).addEventListener("click", act);
  click("guess", accept);
  click("zoom-in", () => zoomBy(1));
  click("zoom-out", () => zoomBy(-1));
  click("context", () => toggle("context"));
  click("together", () => toggle("together"));
  click("undo", undo);
  click("many-undo", undo);
  click("last-undo", undo);
  click("grid-button", () => (page.inGrid() ? page.leaveGrid() : page.openGrid()));
  click("back", page.leaveGrid);
  click("review-button", page.toggleReview);
  click("review-back", page.previous);
  click("review-leave", page.leaveReview);
  click("annotator-button", page.rename);
  for (const button of document.querySelectorAll("[data-word]")) {
    button.addEventListener("click", () => answer(button.dataset.word));
  }
  $("wanted").addEventListener("input", () => filter($("wanted").value));
  $("search").addEventListener("submit", (event) => {
    event.preventDefault();
    const name = filter($("wanted").value);
    if (name) answer(name);
  });
  $("another").addEventListener("submit", (event) => {
    event.preventDefault();
    const name = $("name-of-class").value.trim();
    if (name) answer(name);
  });
}
