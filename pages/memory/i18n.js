// Texts, numbers and times in the language that the WebUI shows now.

const bridge = window.AstrBotPluginPage;

/** The text of a key below pages.memory, with {placeholders} filled in. */
export function t(key, values = {}) {
  const text = bridge.t(`pages.memory.${key}`, key);
  return text.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}

/** Whether a key has a text. */
export function known(key) {
  return bridge.t(`pages.memory.${key}`, "") !== "";
}

/** What stands between two sentences. */
export function gap() {
  return locale().startsWith("zh") ? "" : " ";
}

export function locale() {
  return bridge.getLocale();
}

const formats = new Map();

/** A formatter of Intl in the current language; making one costs more than using it. */
function format(kind, options) {
  const key = `${locale()} ${kind} ${JSON.stringify(options)}`;
  if (!formats.has(key)) formats.set(key, new Intl[kind](locale(), options));
  return formats.get(key);
}

export function number(value) {
  return format("NumberFormat").format(value);
}

/** A number that is an estimate. */
export function about(value) {
  return `≈${number(value)}`;
}

export function percent(part, whole) {
  const share = whole > 0 ? part / whole : 0;
  return format("NumberFormat", { style: "percent", maximumFractionDigits: 0 }).format(share);
}

export function dateTime(seconds) {
  if (!seconds) return t("time.never");
  return format("DateTimeFormat", { dateStyle: "medium", timeStyle: "short" }).format(new Date(seconds * 1000));
}

/** The same without the year, for narrow columns. */
export function shortTime(seconds) {
  const options = { month: "numeric", day: "numeric", hour: "2-digit", minute: "2-digit" };
  return format("DateTimeFormat", options).format(new Date(seconds * 1000));
}

const STEPS = [["day", 86400], ["hour", 3600], ["minute", 60]];

/** "2 hours ago"; a plain date once that says more. */
export function ago(seconds) {
  if (!seconds) return t("time.never");
  const passed = Math.max(0, Date.now() / 1000 - seconds);
  if (passed > 30 * 86400) return dateTime(seconds);
  for (const [unit, size] of STEPS) {
    if (passed >= size) return format("RelativeTimeFormat", { numeric: "auto" }).format(-Math.floor(passed / size), unit);
  }
  return t("time.now");
}

/** The half of a bilingual server text ("中文 / English") for this language. */
export function ownHalf(message) {
  // What both halves quote may hold a slash too: it is then the one in the middle.
  const parts = message.split(" / ");
  if (parts.length % 2) return message;
  const middle = parts.length / 2;
  return (locale().startsWith("zh") ? parts.slice(0, middle) : parts.slice(middle)).join(" / ");
}
