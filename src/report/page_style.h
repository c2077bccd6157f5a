// How a report looks, light and dark, on a desk and on a phone.
#pragma once

namespace llmb {

inline constexpr const char* kPageStyle = R"css(
:root {
  color-scheme: light dark;
  --page: #ffffff; --card: #f7f8fa; --ink: #1b1f26; --soft: #626b78; --faint: #8d95a1; --rule: #e3e6eb; --grid: #e8ebf0;
  --c0: #2f6bd8; --c1: #d9780b; --c2: #12876f; --c3: #8a54c8; --c4: #c8406a; --c5: #6f7d12; --c6: #5b6472;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171c; --card: #1b1f26; --ink: #e7eaef; --soft: #a2abb8; --faint: #7b8491; --rule: #2b313b; --grid: #2a303a;
    --c0: #6b9ef5; --c1: #f0a04b; --c2: #4fc0a5; --c3: #b691ec; --c4: #ef83a3; --c5: #b6c45a; --c6: #a9b2bf;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  -webkit-text-size-adjust: 100%;
}
main { max-width: 1120px; margin: 0 auto; padding: 40px 24px 64px; }
header { margin-bottom: 28px; }
.kind { color: var(--soft); font-size: 13px; margin: 0 0 4px; }
h1 { font-size: 26px; line-height: 1.25; font-weight: 600; margin: 0; letter-spacing: -0.01em; overflow-wrap: anywhere; }
.about { color: var(--soft); margin: 6px 0 0; overflow-wrap: anywhere; }
h2 { font-size: 17px; font-weight: 600; margin: 44px 0 4px; }
.lead { color: var(--soft); margin: 0 0 14px; max-width: 72ch; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 1px;
  border: 1px solid var(--rule); border-radius: 10px; overflow: hidden; }
.tile { padding: 14px 16px; box-shadow: 0 0 0 1px var(--rule); }
.tile b { display: block; font-size: 22px; font-weight: 600; letter-spacing: -0.01em; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 330px), 1fr)); gap: 16px; }
.pairs { grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); }
.plots + .scroll { margin-top: 18px; }
figure { margin: 0; background: var(--card); border-radius: 10px; padding: 14px 14px 8px; min-width: 0; }
figcaption { font-size: 14px; font-weight: 600; margin-bottom: 6px; }
figcaption small { color: var(--soft); font-weight: 400; font-size: 12.5px; }
svg { display: block; width: 100%; height: auto; }
svg text { font-size: 10.5px; fill: var(--soft); font-family: inherit; }
.grid path { stroke: var(--grid); stroke-width: 1; }
.axis { stroke: var(--faint); stroke-width: 1; fill: none; }
.label text { fill: var(--faint); }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); }
.c3 { --c: var(--c3); } .c4 { --c: var(--c4); } .c5 { --c: var(--c5); } .c6 { --c: var(--c6); }
.line { fill: none; stroke: var(--c); stroke-width: 1.6; stroke-linejoin: round; }
.dashed { stroke-dasharray: 4 3; stroke-width: 1.2; }
.area { fill: var(--c); opacity: 0.14; }
.bar { fill: var(--c); opacity: 0.8; }
.dot { fill: var(--c); opacity: 0.5; }
.mark path { stroke: var(--ink); stroke-width: 1; stroke-dasharray: 2 3; opacity: 0.55; }
.mark text { fill: var(--ink); font-size: 10px; }
.keys { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 10px 0 0; padding: 0; list-style: none; font-size: 13.5px; }
.key::before { content: ""; display: inline-block; width: 10px; height: 10px; border-radius: 3px; background: var(--c);
  margin-right: 7px; }
.shares { height: 22px; border-radius: 5px; }
.shares rect { fill: var(--c); }
.rest { --c: var(--rule); }
.scroll { overflow-x: auto; margin: 0 0 4px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 6px 18px 6px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
th { color: var(--soft); font-weight: 500; white-space: nowrap; }
td { overflow-wrap: anywhere; min-width: 5em; }
td.n, th.n { text-align: right; white-space: nowrap; overflow-wrap: normal; }
tr.differs td { font-weight: 600; }
td small { color: var(--soft); }
code { font: 12.5px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.none { color: var(--faint); }
footer { margin-top: 48px; color: var(--faint); font-size: 12.5px; }
@media (max-width: 520px) {
  main { padding: 24px 16px 48px; }
  h1 { font-size: 22px; }
  h2 { margin-top: 34px; }
  .tiles { grid-template-columns: 1fr 1fr; }
  .tile b { font-size: 19px; }
}
@media print { figure { break-inside: avoid; } main { padding: 0; } }
)css";

}  // namespace llmb
