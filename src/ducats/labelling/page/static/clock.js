// Seconds for which a picture was in sight: a hidden tab does not count, nor a coffee break beyond ten minutes.
const MOST = 600;

export class Clock {
  constructor() {
    this.before = 0;
    this.since = null;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.pause() : this.resume()));
    this.running = false;
  }

  start() {
    this.before = 0;
    this.since = null;
    this.running = true;
    if (!document.hidden) this.resume();
  }

  pause() {
    if (this.since !== null) this.before += (performance.now() - this.since) / 1000;
    this.since = null;
  }

  resume() {
    if (this.running && this.since === null) this.since = performance.now();
  }

  // Seconds since the start, each said once: what comes next begins at 0.
  take() {
    this.pause();
    const seconds = this.running ? Math.min(this.before, MOST) : null;
    this.running = false;
    return seconds === null ? null : Math.round(seconds * 100) / 100;
  }
}
