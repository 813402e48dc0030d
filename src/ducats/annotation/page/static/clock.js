// Measures how long an image was visible. A hidden tab does not count; the maximum is ten minutes.
const MAX_SECONDS = 600;

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

  // Returns the seconds since start() and stops the clock; null if it was not running.
  take() {
    this.pause();
    const seconds = this.running ? Math.min(this.before, MAX_SECONDS) : null;
    this.running = false;
    return seconds === null ? null : Math.round(seconds * 100) / 100;
  }
}
