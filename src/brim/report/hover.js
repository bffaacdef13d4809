"use strict";
// Reads values off the charts: under the pointer, where a finger rests, or by the arrow keys once a chart has the focus.
{
  const SVG = "http://www.w3.org/2000/svg";
  const MOST = 12; // lines of one tip
  const tip = document.createElement("output");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);

  const number = (value) =>
    Math.abs(value) >= 1000
      ? Math.round(value).toLocaleString("en")
      : String(Number(value.toPrecision(4)));

  function show(lines, x, y) {
    tip.replaceChildren(...lines);
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const left = x + 14 + width > innerWidth - 8 ? x - 14 - width : x + 14;
    tip.style.left = Math.max(8, Math.min(left, innerWidth - width - 8)) + "px";
    tip.style.top = Math.max(8, y - height - 14 < 8 ? y + 18 : y - height - 14) + "px";
  }

  function line(name, value, colour) {
    const row = document.createElement("div");
    if (colour) {
      const mark = document.createElement("i");
      mark.style.background = `var(--${colour})`;
      row.append(mark);
    }
    row.append(name);
    if (value !== undefined) row.append(Object.assign(document.createElement("b"), { textContent: value }));
    return row;
  }

  // The place of the value that is meant at x: the last one up to it, or the nearest; -1 where there is none.
  function indexAt(series, x) {
    let low = 0, high = series.x.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (series.x[middle] <= x) low = middle + 1; else high = middle;
    }
    if (series.steps || low === series.x.length) return low - 1;
    return low > 0 && x - series.x[low - 1] <= series.x[low] - x ? low - 1 : low;
  }

  function readable(svg) {
    const { unit, panels } = JSON.parse(svg.dataset.readings);
    const scale = (panel, x) => (panel.log ? Math.log10(x) : x);
    const across = (panel, x) => {
      const [from, to] = panel.x.map((each) => scale(panel, each));
      return panel.box[0] + ((scale(panel, x) - from) / (to - from)) * panel.box[2];
    };
    const down = (panel, y) => panel.box[1] + panel.box[3] * (1 - (y - panel.y[0]) / (panel.y[1] - panel.y[0]));
    const beside = (panel) => panels.filter((each) => Math.abs(each.box[0] - panel.box[0]) < 2);
    // Where the arrow keys stop: each value of the longest line of each column of panels.
    const stops = [...new Set(panels.map((panel) => panel.box[0]))].flatMap((left) => {
      const lines = panels.filter((panel) => panel.box[0] === left).flatMap((panel) =>
        panel.series.map((series) => ({ panel, series })));
      const longest = lines.reduce((a, b) => (b.series.x.length > a.series.x.length ? b : a), lines[0]);
      return longest ? longest.series.x.map((x) => ({ panel: longest.panel, x })) : [];
    });
    let stop = -1;

    const cursor = svg.appendChild(document.createElementNS(SVG, "g"));
    cursor.setAttribute("class", "cursor");
    const hide = () => { cursor.replaceChildren(); tip.hidden = true; };
    const draw = (kind, attributes) => {
      const made = document.createElementNS(SVG, kind);
      for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
      cursor.append(made);
    };

    function read(panel, x, point) {
      hide();
      const lines = [];
      for (const each of beside(panel)) {
        const at = across(each, x);
        draw("line", { x1: at, x2: at, y1: each.box[1], y2: each.box[1] + each.box[3] });
        for (const series of each.series) {
          const index = indexAt(series, x);
          if (index < 0 || (series.quiet && !series.y[index])) continue;
          lines.push([series, series.y[index]]);
          const y = down(each, series.y[index]);
          if (!series.quiet && y >= each.box[1] && y <= each.box[1] + each.box[3]) {
            const colour = `stroke: var(--${series.colour})`;
            draw("circle", { cx: series.steps ? at : across(each, series.x[index]), cy: y, r: 3, style: colour });
          }
        }
      }
      const rows = lines.slice(0, MOST).map(([series, value]) => line(series.name, number(value) + series.unit, series.colour));
      if (lines.length > MOST) rows.push(line(`… and ${lines.length - MOST} more`));
      const where = point || svg.createSVGPoint();
      if (!point) {
        const place = Object.assign(svg.createSVGPoint(), { x: across(panel, x), y: panel.box[1] }).matrixTransform(svg.getScreenCTM());
        Object.assign(where, { x: place.x, y: Math.max(place.y, 60) });
      }
      show([line(number(x) + unit), ...rows], where.x, where.y);
    }

    function follow(event) {
      const place = Object.assign(svg.createSVGPoint(), { x: event.clientX, y: event.clientY })
        .matrixTransform(svg.getScreenCTM().inverse());
      const inside = (panel) => place.x >= panel.box[0] - 4 && place.x <= panel.box[0] + panel.box[2] + 4;
      const nearest = (a, b) => Math.abs(place.y - a.box[1] - a.box[3] / 2) < Math.abs(place.y - b.box[1] - b.box[3] / 2) ? a : b;
      const candidates = panels.filter(inside);
      if (!candidates.length) return hide();
      const panel = candidates.reduce(nearest);
      const [from, to] = panel.x.map((each) => scale(panel, each));
      const part = Math.min(1, Math.max(0, (place.x - panel.box[0]) / panel.box[2]));
      const x = from + part * (to - from);
      read(panel, panel.log ? 10 ** x : x, { x: event.clientX, y: event.clientY });
    }

    svg.addEventListener("pointermove", follow);
    svg.addEventListener("pointerdown", follow);
    svg.addEventListener("pointercancel", hide); // a finger that scrolls the page
    svg.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") hide(); });
    keys(svg, () => stops.length, (index) => { stop = index; read(stops[stop].panel, stops[stop].x); }, () => stop, hide);
  }

  function labelled(svg) {
    const parts = [...svg.querySelectorAll("[data-tip]")];
    let lit = -1;
    const hide = () => { if (lit >= 0) parts[lit].classList.remove("lit"); tip.hidden = true; };
    function read(index, x, y) {
      hide();
      lit = index;
      parts[lit].classList.add("lit");
      const box = parts[lit].getBoundingClientRect();
      show([line(parts[lit].dataset.tip)], x ?? box.left + box.width / 2, y ?? box.top);
    }
    const follow = (event) => {
      const index = parts.indexOf(event.target.closest("[data-tip]"));
      if (index < 0) hide(); else read(index, event.clientX, event.clientY);
    };
    svg.setAttribute("tabindex", "0");
    svg.addEventListener("pointermove", follow);
    svg.addEventListener("pointerdown", follow);
    svg.addEventListener("pointercancel", hide); // a finger that scrolls the page
    svg.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") hide(); });
    keys(svg, () => parts.length, (index) => read(index), () => lit, hide);
  }

  function keys(svg, count, go, now, hide) {
    svg.addEventListener("keydown", (event) => {
      const far = event.shiftKey ? 10 : 1;
      const move = { ArrowRight: far, ArrowDown: far, ArrowLeft: -far, ArrowUp: -far, Home: -Infinity, End: Infinity }[event.key];
      if (move === undefined || !count()) return;
      event.preventDefault();
      go(Math.max(0, Math.min(count() - 1, now() + move)));
    });
    svg.addEventListener("blur", hide);
    document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  }

  document.querySelectorAll("svg[data-readings]").forEach(readable);
  document.querySelectorAll("svg:has([data-tip])").forEach(labelled);
  // Not on "scroll": a chart that gets the focus is scrolled to, and its tip is to stay.
  addEventListener("wheel", () => { tip.hidden = true; }, { passive: true });
  addEventListener("pointerdown", (event) => { if (!event.target.closest("figure svg")) tip.hidden = true; });
}
