// Plots of what requests were estimated and cost, one by one and by day.

import { h, s } from "./dom.js";
import { number, percent, t } from "./i18n.js";

const WIDTH = 640;
const HEIGHT = 150;
const PAD = 4;

function bar(name, x, width, y, value) {
  return s("rect", { class: name, x, width, y: y(value), height: HEIGHT - PAD - y(value) });
}

/** Bars of reported tokens with their cached part, and a line of estimates; oldest first. */
function plot(rows, label, titleOf) {
  const top = Math.max(1, ...rows.map((row) => Math.max(row.estimated ?? 0, row.prompt_tokens ?? 0)));
  const step = WIDTH / rows.length;
  const y = (value) => HEIGHT - PAD - (value / top) * (HEIGHT - 2 * PAD);
  const bars = rows.flatMap((row, at) => {
    if (row.prompt_tokens === null) return [];
    const width = Math.min(28, Math.max(1, step * 0.7));
    const x = at * step + (step - width) / 2;
    return [s("g", {}, s("title", {}, titleOf(row)), bar("plot-reported", x, width, y, row.prompt_tokens),
      row.cached_tokens ? bar("plot-cached", x, width, y, row.cached_tokens) : "")];
  });
  const points = rows.map((row, at) => `${at * step + step / 2},${y(row.estimated ?? 0)}`);
  const line = points.length > 1 ? s("polyline", { class: "plot-estimated", points: points.join(" ") }) : "";
  const dots = rows.length <= 40 ? points.map((point) => s("path", { class: "plot-dot", d: `M${point}h0` })) : [];
  const named = `${label} ${t("requests.top", { top: number(top) })}`;
  return h("figure", { class: "plot" },
    h("p", { class: "hint", "aria-hidden": "true" }, named),
    s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": named, preserveAspectRatio: "none" }, s("title", {}, named), ...bars, line, ...dots),
    h("figcaption", { class: "legend" },
      ["reported", "cached", "estimated"].map((name) =>
        h("span", {}, h("span", { class: `swatch plot-${name}`, "aria-hidden": "true" }), t(`requests.${name}`)))));
}

/** The last requests, newest first. */
export function requestsPlot(items) {
  return plot([...items].reverse(), t("requests.plot", { count: number(items.length) }),
    (item) => `${number(item.prompt_tokens)} · ${percent(item.cached_tokens, item.prompt_tokens)}`);
}

/** Sums by day, newest first: how much was sent, and how much of it the cache held. */
export function daysPlot(days) {
  const sum = (name) => days.reduce((total, day) => total + day[name], 0);
  const values = {
    days: number(days.length), requests: number(sum("requests")), tokens: number(sum("prompt_tokens")),
    cached: sum("prompt_tokens") ? percent(sum("cached_tokens"), sum("prompt_tokens")) : t("requests.unreported"),
    plugin: number(Math.round(sum("milliseconds") / Math.max(1, sum("requests")))),
  };
  return h("div", { class: "stack" }, h("p", {}, t("requests.days", values)),
    plot([...days].reverse(), t("requests.daysPlot", { count: number(days.length) }),
      (day) => `${day.day}: ${number(day.prompt_tokens)} · ${percent(day.cached_tokens, day.prompt_tokens)}`));
}
