// What the plugin's health says to the operator, each point with its fix.

import { h } from "./dom.js";
import { ownHalf, t } from "./i18n.js";
import { note } from "./ui.js";

/** The host's settings that work against the plugin, and a failed database. */
export function warningsView(health) {
  if (!health) return null;
  const messages = health.warnings.map((warning) => ownHalf(warning.message));
  if (health.database !== "ok") messages.unshift(t("health.database", { problem: health.database }));
  if (!messages.length) return null;
  return h("div", { class: "stack" }, messages.map((message) => note("warning", message)));
}
