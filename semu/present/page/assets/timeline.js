// The timeline: zoom, pan, hover, the critical path; memory of a rank below, on the same time axis.

const LEFT = 86, RIGHT = 14, AXIS = 26, HEAD = 20;

class Timeline {
  /** @param {HTMLElement} place @param {any} table @param {Store} store */
  constructor(place, table, store) {
    this.place = place;
    /** @type {Run[]} */ this.runs = table.runs.map((/** @type {any} */ one) => new Run(one, store));
    this.endS = Math.max(...this.runs.map((run) => run.endS), 1e-9);
    this.from = 0;
    this.to = this.endS;
    this.cursor = -1;
    this.byPhase = false;
    this.showsCritical = false;
    this.showsOuter = true;
    this.rows = this.runs.reduce((sum, run) => sum + run.ranks.length, 0);
    this.rowHeight = Math.max(9, Math.min(46, 560 / this.rows));
    this.canvas = make("canvas", { class: "time", tabindex: "0", role: "img", "aria-label": place.dataset.said || "" });
    this.tip = make("div", { class: "tip", hidden: "" });
    this.legend = make("div", { class: "legend" });
    this.picked = make("div", { class: "picked", "aria-live": "polite" });
    this.picked.textContent = "Click a stage for what it costs; wheel or + and - to zoom, drag or arrows to pan, 0 for all.";
    place.append(this.controls(), this.legend, this.canvas, this.tip, this.picked);
    this.memory = new MemoryChart(place, this.runs, store, (s) => this.setCursor(s));
    this.listen();
    this.look();
    this.resize();
    new ResizeObserver(() => this.resize()).observe(place);
    onTheme(() => { this.look(); this.draw(); });
  }

  controls() {
    /** @param {string} words @param {() => void} act */
    const button = (words, act) => {
      const found = make("button", { class: "act", type: "button" }, words);
      found.addEventListener("click", act);
      return found;
    };
    /** @param {string} words @param {boolean} on @param {(on: boolean) => void} act */
    const tick = (words, on, act) => {
      const box = make("input", { type: "checkbox" });
      box.checked = on;
      box.addEventListener("change", () => act(box.checked));
      return make("label", {}, box, ` ${words}`);
    };
    return make("div", { class: "controls" },
      button("+", () => this.zoom(0.5, (this.from + this.to) / 2)),
      button("\u2212", () => this.zoom(2, (this.from + this.to) / 2)),
      button("all", () => this.show(0, this.endS)),
      tick("critical path", false, (on) => { this.showsCritical = on; this.draw(); }),
      tick("transfers and collectives", true, (on) => { this.showsOuter = on; this.draw(); }),
      tick("colour by phase", false, (on) => { this.byPhase = on; this.look(); this.draw(); }));
  }

  /** Colours and their key. */
  look() {
    /** @type {Kind[]} */ const kinds = [];
    for (const run of this.runs)
      for (const kind of run.kinds)
        if (!kinds.some((one) => one.module === kind.module && one.phase === kind.phase)) kinds.push(kind);
    const modules = [...new Set(kinds.map((kind) => kind.module))];
    kinds.sort((a, b) => modules.indexOf(a.module) - modules.indexOf(b.module));
    const all = colors(kinds, this.byPhase);
    this.colors = this.runs.map((run) =>
      run.kinds.map((kind) => all[kinds.findIndex((one) => one.module === kind.module && one.phase === kind.phase)]));
    /** @type {Map<string, string>} */ const entries = new Map();
    kinds.forEach((kind, i) => entries.set(this.byPhase ? kind.phase : `${kind.module} ${kind.phase}`, all[i]));
    if (this.runs.some((run) => run.outer.lane.includes(1))) entries.set("transfer", ink("--transfer"));
    if (this.runs.some((run) => run.outer.lane.includes(2))) entries.set("collective", ink("--collective"));
    if (this.runs.some((run) => run.outer.lane.includes(0))) entries.set("optimizer step", ink("--step"));
    entries.set("idle", ink("--idle"));
    this.legend.replaceChildren(...[...entries].map(([name, color]) =>
      make("span", {}, make("i", { style: `background:${color}` }), name)));
  }

  resize() {
    const width = this.place.clientWidth;
    if (!width) return;
    this.width = width;
    this.height = AXIS + this.rows * this.rowHeight + this.runs.length * HEAD;
    const ratio = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.height = `${this.height}px`;
    this.memory.resize(width);
    this.draw();
  }

  /** @param {number} s */
  x(s) { return LEFT + ((s - this.from) / (this.to - this.from)) * ((this.width || 1) - LEFT - RIGHT); }

  /** @param {number} x */
  s(x) { return this.from + ((x - LEFT) / ((this.width || 1) - LEFT - RIGHT)) * (this.to - this.from); }

  /** The first pixel of a run's rows. @param {number} number */
  top(number) {
    let y = 0;
    for (let i = 0; i < number; i++) y += HEAD + this.runs[i].ranks.length * this.rowHeight;
    return y + HEAD;
  }

  /** Run and row at a height, or null. @param {number} y */
  rowAt(y) {
    for (let i = 0; i < this.runs.length; i++) {
      const row = Math.floor((y - this.top(i)) / this.rowHeight);
      if (row >= 0 && row < this.runs[i].ranks.length) return { number: i, run: this.runs[i], row, within: (y - this.top(i)) / this.rowHeight - row };
    }
    return null;
  }

  /** @param {number} from @param {number} to */
  show(from, to) {
    const span = Math.min(Math.max(to - from, this.endS * 1e-6), this.endS);
    this.from = Math.min(Math.max(from, 0), this.endS - span);
    this.to = this.from + span;
    this.memory.show(this.from, this.to);
    this.draw();
  }

  /** @param {number} factor @param {number} around [s] */
  zoom(factor, around) {
    this.show(around - (around - this.from) * factor, around + (this.to - around) * factor);
  }

  /** @param {number} s */
  setCursor(s) {
    if (s === this.cursor) return;
    this.cursor = s;
    this.draw();
  }

  listen() {
    const canvas = this.canvas;
    /** @type {{x: number, from: number, to: number, moved: boolean}|null} */ let drag = null;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        const step = ((event.deltaX || event.deltaY) / (this.width || 1)) * (this.to - this.from);
        this.show(this.from + step, this.to + step);
      } else this.zoom(Math.exp(event.deltaY * 0.0015), this.s(event.offsetX));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.offsetX, from: this.from, to: this.to, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (drag) {
        const step = ((drag.x - event.offsetX) / ((this.width || 1) - LEFT - RIGHT)) * (drag.to - drag.from);
        drag.moved = drag.moved || Math.abs(drag.x - event.offsetX) > 3;
        if (drag.moved) this.show(drag.from + step, drag.to + step);
      }
      this.hover(event.offsetX, event.offsetY);
    });
    canvas.addEventListener("pointerup", (event) => {
      if (drag && !drag.moved) this.pick(event.offsetX, event.offsetY);
      drag = null;
    });
    canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; this.cursor = -1; this.memory.cursor(-1); this.draw(); });
    canvas.addEventListener("keydown", (event) => {
      const step = (this.to - this.from) / 8, middle = (this.from + this.to) / 2;
      /** @type {Record<string, () => void>} */ const acts = {
        ArrowLeft: () => this.show(this.from - step, this.to - step), ArrowRight: () => this.show(this.from + step, this.to + step),
        "+": () => this.zoom(0.5, middle), "=": () => this.zoom(0.5, middle), "-": () => this.zoom(2, middle),
        0: () => this.show(0, this.endS), Home: () => this.show(0, this.to - this.from),
        End: () => this.show(this.endS - (this.to - this.from), this.endS),
      };
      if (!acts[event.key] || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      acts[event.key]();
    });
  }

  /** What is at a point, in lines. @param {number} x @param {number} y @returns {string} */
  said(x, y) {
    const at = this.rowAt(y), time = this.s(x);
    if (!at || x < LEFT || time < 0 || time > at.run.endS) return "";
    const { run, row } = at, near = (2 * (this.to - this.from)) / (this.width || 1);
    if (this.showsOuter && at.within > LANES[0][1]) {
      const outer = run.outerAt(row, time, near);
      if (outer >= 0)
        return `${run.texts[run.outerName[outer]]}\nrank ${run.ranks[row]}, ${seconds(run.outer.lasted[outer])} from ${seconds(run.outer.start[outer])}`;
    }
    const stage = run.stageAt(row, time);
    if (stage < 0) {
      const outer = run.outerAt(row, time, 0);
      if (outer >= 0 && run.outer.lane[outer] === 0)
        return `${run.texts[run.outerName[outer]]}\nrank ${run.ranks[row]}, ${seconds(run.outer.lasted[outer])}`;
      return this.idle(run, row, time);
    }
    const kind = run.kinds[run.kind[stage]];
    const costly = run.costly[run.group[stage]].map((one) => `  ${seconds(one.s)}  ${one.name}`);
    const waited = run.texts[run.wait[stage]];
    return [
      `${run.texts[run.label[stage]]}: ${kind.module} ${kind.phase}, microbatch ${run.microbatch[stage]}, rank ${run.ranks[row]}`,
      `${seconds(run.lasted[stage])} from ${seconds(run.start[stage])}`,
      ...(waited ? [waited] : []),
      ...(costly.length ? ["costliest operators of the longest such stage:", ...costly] : []),
    ].join("\n");
  }

  /** Why a rank is idle. @param {Run} run @param {number} row @param {number} time @returns {string} */
  idle(run, row, time) {
    let next = run.first[row];
    while (next < run.first[row + 1] && run.start[next] < time) next++;
    if (next === run.first[row + 1]) return `rank ${run.ranks[row]}: no further stage`;
    const before = next > run.first[row] ? run.start[next - 1] + run.lasted[next - 1] : 0;
    const why = run.texts[run.wait[next]];
    return `rank ${run.ranks[row]} idle for ${seconds(run.start[next] - before)}\n${run.texts[run.label[next]]} ${why}`;
  }

  /** @param {number} x @param {number} y */
  hover(x, y) {
    const words = this.said(x, y), time = this.s(x);
    this.tip.hidden = !words;
    if (words) {
      this.tip.textContent = words;
      const box = this.canvas.offsetTop;
      this.tip.style.left = `${Math.min(x + 14, (this.width || 0) - this.tip.offsetWidth - 8)}px`;
      this.tip.style.top = `${box + y + 16}px`;
    }
    this.cursor = time >= this.from && time <= this.to ? time : -1;
    this.memory.cursor(this.cursor);
    this.draw();
  }

  /** @param {number} x @param {number} y */
  pick(x, y) {
    const at = this.rowAt(y);
    if (at) this.memory.choose(at.number, at.row);
    const words = this.said(x, y);
    if (words) this.picked.textContent = words;
  }

  draw() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => { this.pending = 0; this.paint(); });
  }

  paint() {
    const context = this.canvas.getContext("2d");
    if (!context || !this.width) return;
    const ratio = devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height || 0);
    this.runs.forEach((_, number) => this.paintRun(context, number));
    context.fillStyle = ink("--ground");
    context.fillRect(0, 0, LEFT, this.height || 0);
    context.fillRect(this.width - RIGHT, 0, RIGHT, this.height || 0);
    this.runs.forEach((_, number) => this.paintNames(context, number));
    this.paintAxis(context);
    if (this.cursor >= 0) {
      context.fillStyle = ink("--soft");
      context.fillRect(Math.round(this.x(this.cursor)), 0, 1, (this.height || 0) - AXIS);
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {number} number */
  paintRun(context, number) {
    const run = this.runs[number], top = this.top(number), height = this.rowHeight;
    const palette = (this.colors || [])[number], [low, high] = this.showsOuter ? LANES[0] : [0.06, 0.94];
    const end = Math.min(this.x(run.endS), (this.width || 0) - RIGHT);
    context.fillStyle = ink("--idle");
    run.ranks.forEach((_, row) =>
      context.fillRect(LEFT, top + (row + low) * height, Math.max(end - LEFT, 0), (high - low) * height));
    const size = Math.min(11, (high - low) * height * 0.62), inks = palette.map(inkOn);
    context.font = `${size}px system-ui, sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let row = 0; row < run.ranks.length; row++) {
      const y = top + (row + low) * height, tall = (high - low) * height;
      let filled = -1;
      for (let i = Math.max(run.first[row], this.firstAfter(run, row)); i < run.first[row + 1] && run.start[i] < this.to; i++) {
        const left = this.x(run.start[i]), right = this.x(run.start[i] + run.lasted[i]);
        if (right < filled + 0.4) continue;
        const wide = right - left;
        context.fillStyle = palette[run.kind[i]];
        context.fillRect(left, y, Math.max(wide - (wide > 5 ? 0.8 : 0), 0.6), tall);
        filled = Math.max(right, left + 0.6);
        const words = size >= 6.5 && wide > 12 ? String(run.microbatch[i]) : "";
        if (words && wide > words.length * size * 0.62 + 3) {
          context.fillStyle = inks[run.kind[i]];
          const seen = (Math.max(left, LEFT) + Math.min(right, (this.width || 0) - RIGHT)) / 2;
          context.fillText(words, seen, y + tall / 2 + 0.5);
        }
      }
    }
    if (this.showsOuter) this.paintPieces(context, run.outer, top, [ink("--step"), ink("--transfer"), ink("--collective")], 1);
    else this.paintPieces(context, run.outer, top, [ink("--step"), "", ""], 1);
    if (this.showsCritical) this.paintPieces(context, run.critical, top, [ink("--critical"), ink("--critical"), ink("--critical")], 0);
    context.fillStyle = ink("--soft");
    if (run.makespanS >= this.from && run.makespanS <= this.to)
      for (let y = top; y < top + run.ranks.length * height; y += 7) context.fillRect(this.x(run.makespanS), y, 1, 4);
  }

  /** Boxes outside stages, or frames around the critical path. @param {CanvasRenderingContext2D} context
   * @param {ReturnType<typeof pieces>} boxes @param {number} top @param {string[]} inks @param {number} filled */
  paintPieces(context, boxes, top, inks, filled) {
    const height = this.rowHeight;
    context.lineWidth = 2;
    for (let i = 0; i < boxes.row.length; i++) {
      const from = boxes.start[i], to = from + boxes.lasted[i], color = inks[boxes.lane[i]];
      if (to < this.from || from > this.to || !color) continue;
      const [low, high] = boxes.lane[i] === 0 && !this.showsOuter ? [0.06, 0.94] : LANES[boxes.lane[i]];
      const left = this.x(from), wide = Math.max(this.x(to) - left, 1.2), y = top + (boxes.row[i] + low) * height;
      if (filled) {
        context.fillStyle = color;
        context.fillRect(left, y, wide, (high - low) * height);
      } else {
        context.strokeStyle = color;
        context.strokeRect(left + 1, y + 1, Math.max(wide - 2, 0.5), (high - low) * height - 2);
      }
    }
  }

  /** The first stage of a row that ends within the view. @param {Run} run @param {number} row */
  firstAfter(run, row) {
    let low = run.first[row], high = run.first[row + 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (run.start[middle] + run.lasted[middle] < this.from) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** @param {CanvasRenderingContext2D} context @param {number} number */
  paintNames(context, number) {
    const run = this.runs[number], top = this.top(number), step = Math.max(1, Math.ceil(13 / this.rowHeight));
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.font = "12px system-ui, sans-serif";
    for (let row = 0; row < run.ranks.length; row += step) {
      const chosen = this.memory.run === number && this.memory.row === row;
      context.fillStyle = chosen ? ink("--accent") : ink("--ink");
      context.fillText(`rank ${run.ranks[row]}`, LEFT - 8, top + (row + 0.45) * this.rowHeight);
    }
    context.textAlign = "left";
    context.fillStyle = ink("--ink");
    context.font = "600 12px system-ui, sans-serif";
    const words = this.runs.length > 1 ? `${run.name}: ` : "";
    context.fillText(`${words}iteration ${seconds(run.iterationS)}, bubble ${(100 * run.bubble).toFixed(1)} %`, 8, top - HEAD / 2, (this.width || 0) - 16);
  }

  /** @param {CanvasRenderingContext2D} context */
  paintAxis(context) {
    const y = (this.height || 0) - AXIS, span = this.to - this.from;
    const raw = span / Math.max(2, Math.floor(((this.width || 0) - LEFT) / 110)), power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((part) => part * power).find((part) => part >= raw) || raw;
    const [scale, unit] = step >= 0.1 ? [1, "s"] : step >= 1e-4 ? [1e3, "ms"] : [1e6, "us"];
    const digits = Math.max(0, -Math.floor(Math.log10(step * scale) + 1e-9));
    context.fillStyle = ink("--soft");
    context.fillRect(LEFT, y, (this.width || 0) - LEFT - RIGHT, 1);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "top";
    context.textAlign = "center";
    for (let tick = Math.ceil(this.from / step) * step; tick <= this.to + step * 1e-6; tick += step) {
      context.fillRect(Math.round(this.x(tick)), y, 1, 4);
      context.fillText((tick * scale).toFixed(digits), this.x(tick), y + 7);
    }
    context.textAlign = "right";
    context.fillText(`time [${unit}]`, LEFT - 8, y + 7);
  }
}
