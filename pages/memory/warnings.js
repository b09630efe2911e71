// What the plugin's health says to the operator, each point with its fix.

import { h } from "./dom.js";
import { ownHalf, t } from "./i18n.js";
import { note } from "./ui.js";

function messagesOf(health) {
  if (!health) return [];
  const messages = health.warnings.map((warning) => ownHalf(warning.message));
  if (health.database !== "ok") messages.unshift(t("health.database", { problem: health.database }));
  return messages;
}

/** All warnings behind one line, for the head of the page. */
export function warningsLine(health) {
  const messages = messagesOf(health);
  if (!messages.length) return null;
  return h("details", { class: "warnings" }, h("summary", {}, t("health.line", { count: messages.length })),
    messages.map((message) => note("warning", message)));
}

/** The host's settings that work against the plugin, and a failed database. */
export function warningsView(health) {
  const messages = messagesOf(health);
  if (!messages.length) return null;
  return h("div", { class: "stack" }, messages.map((message) => note("warning", message)));
}
