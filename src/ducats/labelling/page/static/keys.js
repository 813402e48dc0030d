// What each key and button does.
import { $ } from "./dom.js";
import { begins, filter } from "./show.js";

export function listen(page) {
  const { accept, answer, closer, toggle, undo } = page;
  const does = {
    u: undo, Backspace: undo,
    s: () => answer("skip"), ArrowRight: () => answer("skip"),
    "?": () => answer("unsure"), 0: () => answer("void"), x: () => answer("void"),
    "+": () => closer(1), "=": () => closer(1), "-": () => closer(-1),
    o: () => toggle("context"), a: () => toggle("together"),
    g: page.openGrid, n: () => $("another").hidden || $("name-of-class").focus(),
    "/": () => $("search").hidden || $("wanted").focus(),
    Enter: accept, " ": accept,
  };
  const inGrid = {
    u: undo, Backspace: undo, "?": does["?"], 0: does[0], x: does.x, s: does.s, g: page.leaveGrid,
    Escape: page.leaveGrid, Enter: () => page.grid.accept(),
  };

  function act(event, acts) {
    const low = event.key.toLowerCase();
    const name = page.className(low);
    const does = acts[event.key] ?? acts[low]; // capital letters, too
    if (name === undefined && !does) return;
    event.preventDefault();
    if (name === undefined) does();
    else answer(name);
  }

  document.addEventListener("keydown", (event) => {
    const { target, key } = event;
    // A key that is held down would answer what nobody has looked at.
    if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || $("ask-name").open) return;
    if (target.matches?.("input")) {
      if (key === "Escape") target.blur();
      // An empty search field leaves keys to the page that are no letters, and begin no class's name.
      const free = target.id === "wanted" && !target.value && !/^[a-z/]$/i.test(key) && !begins(key);
      if (free && key in does) act(event, does);
    } else if (page.inGrid()) {
      if (key !== "Enter" || target.matches?.(".tile") || target.tagName !== "BUTTON") act(event, inGrid);
    } else if (!target.closest?.("button, summary") || (key !== "Enter" && key !== " ")) {
      act(event, does); // Enter and space on a button press it
    }
  });

  const click = (id, act) => $(id).addEventListener("click", act);
  click("guess", accept);
  click("closer", () => closer(1));
  click("wider", () => closer(-1));
  click("context", () => toggle("context"));
  click("together", () => toggle("together"));
  click("undo", undo);
  click("many-undo", undo);
  click("last-undo", undo);
  click("grid-button", () => (page.inGrid() ? page.leaveGrid() : page.openGrid()));
  click("back", page.leaveGrid);
  click("who-button", page.rename);
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
