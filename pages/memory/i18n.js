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

export function locale() {
  return bridge.getLocale();
}

export function number(value) {
  return new Intl.NumberFormat(locale()).format(value);
}

/** A number that is an estimate. */
export function about(value) {
  return `≈${number(value)}`;
}

export function percent(part, whole) {
  const share = whole > 0 ? part / whole : 0;
  return new Intl.NumberFormat(locale(), { style: "percent", maximumFractionDigits: 0 }).format(share);
}

export function dateTime(seconds) {
  if (!seconds) return t("time.never");
  const format = new Intl.DateTimeFormat(locale(), { dateStyle: "medium", timeStyle: "short" });
  return format.format(new Date(seconds * 1000));
}

const STEPS = [["day", 86400], ["hour", 3600], ["minute", 60]];

/** "2 hours ago"; a plain date once that says more. */
export function ago(seconds) {
  if (!seconds) return t("time.never");
  const passed = Math.max(0, Date.now() / 1000 - seconds);
  if (passed > 30 * 86400) return dateTime(seconds);
  const format = new Intl.RelativeTimeFormat(locale(), { numeric: "auto" });
  for (const [unit, size] of STEPS) {
    if (passed >= size) return format.format(-Math.floor(passed / size), unit);
  }
  return t("time.now");
}

/** The half of a bilingual server text ("中文 / English") for this language. */
export function ownHalf(message) {
  const at = message.lastIndexOf(" / ");
  if (at < 0) return message;
  return locale().startsWith("zh") ? message.slice(0, at) : message.slice(at + 3);
}
