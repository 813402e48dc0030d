// Steps through answers that are worth a second look. A decision is shown as saved only after it is on disk.

export class Review {
  constructor(net) {
    this.net = net;
    this.items = [];
    this.index = 0;
  }

  // Returns how many there are.
  async load(annotator) {
    const [found] = await this.net.get("/api/review", { annotator });
    [this.items, this.rounds, this.index] = [found.items, found.rounds, 0];
    return this.items.length;
  }

  get item() {
    return this.items[this.index];
  }

  // What the page must know about the round of the item.
  get round() {
    return this.rounds[this.item.round];
  }

  // Moves on or back; returns false at the end.
  step(by) {
    this.index = Math.max(0, this.index + by);
    return this.index < this.items.length;
  }

  // Resolves to a message about the consequence, or an empty one.
  async decide(annotator, word) {
    const { id: question, round, review } = this.item;
    const [reply] = await this.net.post("/api/review", { annotator, round, question, word });
    review.label = reply.label;
    return reply.message;
  }
}
