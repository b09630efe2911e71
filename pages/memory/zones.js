// Where the messages of a conversation are: sent, covered by the summary, or neither.

import { h } from "./dom.js";
import { number, t } from "./i18n.js";

/** "340 messages = 40 sent + 280 covered by the summary + 20 left out". */
export function zonesLine(zones) {
  if (!zones?.total) return null;
  const values = Object.fromEntries(Object.entries(zones).map(([name, count]) => [name, number(count)]));
  return h("p", { class: "hint zones" }, t("zones.line", values),
    zones.left_out ? [" ", h("span", { class: "chip chip-warning" }, t("zones.leftOut", values))] : null);
}
