// DOM helpers. Text is always set as text, never as HTML.
export const $ = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function only(id) {
  for (const part of ["one", "many", "message"]) $(part).hidden = part !== id;
}

// Never rounds up to 100% or down to 0%.
export function percent(share) {
  const value = 100 * share;
  if (value > 99 && value < 100) return `${Math.floor(10 * value) / 10}%`;
  return value > 0 && value < 1 ? "under 1%" : `${Math.round(value)}%`;
}

export const count = (number) => number.toLocaleString("en").replaceAll(",", "\u202f");

export function minutes(seconds) {
  return seconds < 90 ? `${Math.max(0, Math.round(seconds))} s` : `${Math.round(seconds / 60)} min`;
}

export const capitalised = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// Blind questions have no guess; their file name may give the class away.
export const altText = (question) => `Question ${question.number}${"guess" in question ? `: ${question.id}` : ""}`;

// Reads a value stored in this browser; empty without storage.
export function remembered(name) {
  try {
    return localStorage.getItem(name) ?? "";
  } catch {
    return "";
  }
}

export function remember(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch { /* the page asks again next time */ }
}

// Loads an image; image.ready resolves to whether it could be loaded. Small images are enlarged without blur.
export function load(url, alt) {
  const image = make("img", { alt });
  image.ready = new Promise((resolve) => {
    image.addEventListener("load", () => {
      const longest = Math.max(image.naturalWidth, image.naturalHeight);
      image.classList.toggle("tiny", longest < 128);
      // Enlarging further would not show more.
      image.style.maxWidth = image.style.maxHeight = `min(100%, ${longest * (longest < 128 ? 8 : 2)}px)`;
      resolve(true);
    });
    image.addEventListener("error", () => resolve(false));
  });
  image.src = url;
  return image;
}
