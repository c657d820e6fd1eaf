/* A box on a photo that can be moved, resized and drawn anew: with a mouse, a finger or the arrow keys. */

import { rectangle, shape } from "./dom.js";

const CORNERS = [["Upper left corner", 0, 1], ["Upper right corner", 2, 1], ["Lower right corner", 2, 3], ["Lower left corner", 0, 3]];
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const HANDLE = 7, REACH = 20; // radius in screen pixels: what is seen, and what a finger hits
const STEP = 0.01; // of the longer side, per key press; five times as much with Shift
const SMALLEST = 0.01; // of the longer side

/** Calls `onChange(box)` when a change is complete. */
export class BoxEditor {
  constructor(svg, onChange) {
    Object.assign(this, { svg, onChange, box: null, width: 1, height: 1, drag: null });
    svg.addEventListener("pointerdown", (event) => this.#begin(event));
    svg.addEventListener("touchstart", (event) => { // or else the finger scrolls the page; touch-action has no effect here
      if (event.target.closest(".part")) event.preventDefault();
    }, { passive: false });
    svg.addEventListener("pointermove", (event) => this.#drag(event));
    svg.addEventListener("pointerup", () => this.#end());
    svg.addEventListener("pointercancel", () => this.#cancel());
    svg.addEventListener("keydown", (event) => this.#press(event));
    svg.addEventListener("keyup", (event) => { if (event.key in ARROWS) this.#end(); });
    new ResizeObserver(() => this.#place()).observe(svg);
  }

  /** `box`: x0, y0, x1, y1 in pixels of the photo, or null. */
  show(box, width, height) {
    Object.assign(this, { box, width, height, drag: null });
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren(...(box ? this.#shapes() : []));
    this.#place();
  }

  #shapes() {
    const part = (element, name, sides) => {
      for (const [key, value] of [["tabindex", 0], ["role", "button"], ["aria-label", `${name}: move with the arrow keys`]]) {
        element.setAttribute(key, value);
      }
      element.classList.add("part");
      return Object.assign(element, { sides });
    };
    return [
      rectangle(this.box, "shade"), part(rectangle(this.box, "found"), "Box", [0, 1, 2, 3]),
      ...CORNERS.map(([name, x, y]) => part(
        shape("g", {}, shape("circle", { class: "reach" }), shape("circle", { class: "corner" })), name, [x, y])),
    ];
  }

  /** Bring the shapes in line with the box. Handles keep their size on the screen. */
  #place() {
    if (!this.box) return;
    const [x0, y0, x1, y1] = this.box;
    const pixel = this.width / (this.svg.clientWidth || this.width);
    for (const element of this.svg.querySelectorAll("rect")) {
      for (const [name, value] of [["x", x0], ["y", y0], ["width", x1 - x0], ["height", y1 - y0]]) element.setAttribute(name, value);
    }
    for (const group of this.svg.querySelectorAll("g")) {
      const [x, y] = group.sides;
      group.setAttribute("transform", `translate(${this.box[x]} ${this.box[y]})`);
      group.firstChild.setAttribute("r", REACH * pixel);
      group.lastChild.setAttribute("r", HANDLE * pixel);
    }
  }

  #point(event) {
    const frame = this.svg.getBoundingClientRect();
    return [((event.clientX - frame.x) / frame.width) * this.width, ((event.clientY - frame.y) / frame.height) * this.height];
  }

  #begin(event) {
    if (event.button !== 0) return;
    const part = event.target.closest(".part");
    if (!part && event.pointerType === "touch") return; // outside of the box a finger scrolls the page
    event.preventDefault();
    const point = this.#point(event);
    const before = this.box;
    if (!part) this.show([...point, ...point], this.width, this.height);
    part?.focus();
    this.drag = { point, before, from: [...this.box], sides: part?.sides ?? [2, 3] };
    this.svg.setPointerCapture(event.pointerId);
  }

  #drag(event) {
    if (!this.drag) return;
    const [x, y] = this.#point(event);
    this.#change(this.drag.from, this.drag.sides, [x - this.drag.point[0], y - this.drag.point[1]]);
  }

  #press(event) {
    const direction = ARROWS[event.key];
    const sides = event.target.closest(".part")?.sides;
    if (!direction || !sides || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    this.drag ??= { before: [...this.box], from: this.box, sides };
    const step = STEP * Math.max(this.width, this.height) * (event.shiftKey ? 5 : 1);
    this.#change(this.box, sides, direction.map((value) => value * step));
  }

  /** Shift some sides of a box within the photo. A corner may pass its opposite. */
  #change(box, sides, shift) {
    const limits = [this.width, this.height];
    const whole = sides.length === 4;
    const moved = [...box];
    for (const side of sides) {
      const axis = side % 2;
      const room = whole ? [-box[axis], limits[axis] - box[axis + 2]] : [-box[side], limits[axis] - box[side]];
      moved[side] = box[side] + Math.min(Math.max(shift[axis], room[0]), room[1]);
    }
    this.box = whole ? moved : [
      Math.min(moved[0], moved[2]), Math.min(moved[1], moved[3]), Math.max(moved[0], moved[2]), Math.max(moved[1], moved[3])];
    this.#place();
  }

  #end() {
    if (!this.drag) return;
    const { before } = this.drag;
    const [x0, y0, x1, y1] = this.box;
    const smallest = SMALLEST * Math.max(this.width, this.height);
    if (Math.min(x1 - x0, y1 - y0) < smallest) return this.#cancel();
    this.drag = null;
    if (String(this.box) !== String(before)) this.onChange(this.box);
  }

  #cancel() {
    if (this.drag) this.show(this.drag.before, this.width, this.height);
  }
}
