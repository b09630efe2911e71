// A token estimate while typing, by the scripts of the characters.
//
// The plugin counts exactly when it saves; the ratio of its last count to this
// estimate corrects the number shown in between.

const SCRIPTS = [
  [/[\u3040-\u30ff\uac00-\ud7af]/gu, 0.9],
  [/[\u3400-\u9fff\uf900-\ufaff\u{20000}-\u{3ffff}]/gu, 0.65],
  [/[\u{1f000}-\u{1faff}\u2600-\u27bf\u200d\ufe0f]/gu, 2],
  [/[A-Za-z]/g, 0.25],
  [/\s/g, 0.15],
  [/[!-@[-`{-~]/g, 0.6],
];
const OTHER = 0.8;

export function roughTokens(text) {
  let total = 0;
  let rest = [...text].length;
  for (const [pattern, weight] of SCRIPTS) {
    const found = (text.match(pattern) || []).length;
    total += found * weight;
    rest -= found;
  }
  return Math.ceil(total + Math.max(0, rest) * OTHER);
}

/** An estimator that agrees with the plugin's count of the saved text. */
export function estimator(savedText, savedTokens) {
  const rough = roughTokens(savedText);
  const ratio = rough > 20 && savedTokens > 0 ? savedTokens / rough : 1;
  return (text) => (text === savedText && savedTokens >= 0 ? savedTokens : Math.ceil(roughTokens(text) * ratio));
}
