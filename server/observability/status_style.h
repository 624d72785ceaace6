// The style of the status page: one column on a phone, two if there is space, light or dark as the reader prefers.
//
// Thread safety: a constant.
//
//   StrCat("<style>", kStatusStyle, "</style>")
#pragma once

namespace gdn {

inline constexpr char kStatusStyle[] = R"(
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--ink:#1c2430;--soft:#566072;--line:#dfe3ea;--good:#116b3c;
--goodback:#ddf3e5;--bad:#a01717;--badback:#fde3e1;--c0:#2257c5;--c1:#b5530b;--track:#e7eaf0;--link:#1d4fb8;
--s0:#8a94a6;--s1:#5f6b80;--s2:#e0a32e;--s3:#3aa6a0;--s4:#7c6bd6;--s5:#2f6fde;--s6:#57b36a;--s7:#c2588f;--s8:#a9784a}
@media(prefers-color-scheme:dark){:root{--page:#12161c;--card:#1b212a;--ink:#e8ecf2;--soft:#a3adbd;--line:#323b48;
--good:#8fe0b0;--goodback:#123522;--bad:#ffb1a8;--badback:#47191a;--c0:#82aaff;--c1:#ffb066;--track:#2a323e;
--link:#9dbdff;--s0:#a5afc0;--s1:#7d899e;--s2:#e5b04a;--s3:#52c0b9;--s4:#9d8ff0;--s5:#6d9fff;--s6:#74cb86;--s7:#e083b3;
--s8:#cb9c6d}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,
"Noto Sans","DejaVu Sans",sans-serif;-webkit-text-size-adjust:100%}
header,main{max-width:72rem;margin:0 auto;padding:0 1rem}
header{display:flex;flex-wrap:wrap;align-items:center;gap:.4rem 1rem;padding-top:1.2rem}
h1{font-size:1.5rem;margin:0}
h2{font-size:1.05rem;margin:0 0 .8rem}
h3{font-size:.95rem;margin:0;font-weight:600}
p{margin:.2rem 0}
small,.when,.hint,.axis,h3 small{color:var(--soft);font-weight:400}
small{font-size:.85rem;overflow-wrap:anywhere}
a{color:var(--link)}
code{font:.9em ui-monospace,"DejaVu Sans Mono",monospace;overflow-wrap:anywhere}
.state{margin:0;padding:.1rem .8rem;border-radius:1rem;font-weight:600}
.good{color:var(--good);background:var(--goodback)}
.bad{color:var(--bad);background:var(--badback)}
.when{margin-left:auto;font-size:.9rem}
.hold input{vertical-align:-.1em}
main{padding-bottom:2rem}
section{background:var(--card);border:1px solid var(--line);border-radius:.7rem;padding:1rem;margin-top:1rem}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.7rem 1.2rem;margin:0}
dt{color:var(--soft);font-size:.85rem}
dd{margin:0;font-weight:600;overflow-wrap:anywhere}
dl div:nth-last-child(-n+2){grid-column:1/-1}
ul,ol{list-style:none;margin:0;padding:0}
.tiers{display:grid;grid-template-columns:repeat(auto-fit,minmax(15rem,1fr));gap:1rem}
.tiers p:first-child{display:flex;justify-content:space-between;gap:1rem}
.bar{height:.8rem;border-radius:.4rem;background:var(--track);overflow:hidden;margin:.25rem 0}
.bar i{display:block;height:100%;background:var(--c0)}
.bar.full i{background:var(--c1)}
.problem,em{color:var(--bad);font-style:normal;font-weight:600;overflow-wrap:anywhere}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,24rem),1fr));gap:1.4rem 2rem}
.plot{margin:0}
figcaption{display:flex;flex-wrap:wrap;justify-content:space-between;gap:0 1rem}
figcaption p{margin:0}
.key{display:inline-flex;align-items:center;gap:.35rem;margin-left:.9rem;font-size:.9rem;white-space:nowrap}
.key:first-child{margin-left:0}
.key i{width:.8rem;height:.8rem;border-radius:.2rem;background:currentColor}
.key i.c0{background:var(--c0)}
.key i.c1{background:var(--c1)}
.area{position:relative;height:8rem;margin-top:.3rem}
.area svg{display:block;width:100%;height:100%;overflow:visible}
.tick{position:absolute;left:.2rem;font-size:.8rem;line-height:1;color:var(--soft);transform:translateY(-115%);
background:var(--card);opacity:.85;padding:0 .15rem;pointer-events:none}
.tick:first-child{transform:translateY(15%)}
.tip{position:absolute;top:0;bottom:0;margin:0;border-left:1px solid var(--soft);pointer-events:none;font-size:.85rem;
white-space:nowrap;text-indent:.4rem;color:var(--ink)}
.tip.left{border-left:0;border-right:1px solid var(--soft);transform:translateX(-100%);padding-right:.4rem;
text-indent:0}
.grid,.line{fill:none;vector-effect:non-scaling-stroke}
.grid{stroke:var(--line);stroke-width:1}
.line{stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}
.line.c0{stroke:var(--c0)}
.line.c1{stroke:var(--c1);stroke-dasharray:5 3}
.axis{display:flex;justify-content:space-between;font-size:.8rem;margin-top:.35rem}
.calls li{padding:.7rem 0;border-top:1px solid var(--line)}
.calls li:first-child{border-top:0;padding-top:0}
.call{display:flex;gap:.8rem;align-items:baseline}
.call b{min-width:5rem;font-variant-numeric:tabular-nums}
.call span{min-width:0;overflow-wrap:anywhere}
.stages{display:flex;height:.8rem;border-radius:.4rem;overflow:hidden;background:var(--track)}
.stages i{flex-basis:0}
.keys{display:flex;flex-wrap:wrap;gap:.1rem .9rem;margin:.35rem 0}
.keys .key{margin-left:0}
i.s0{background:var(--s0)!important}i.s1{background:var(--s1)!important}i.s2{background:var(--s2)!important}
i.s3{background:var(--s3)!important}i.s4{background:var(--s4)!important}i.s5{background:var(--s5)!important}
i.s6{background:var(--s6)!important}i.s7{background:var(--s7)!important}i.s8{background:var(--s8)!important}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%}
th,td{padding:.35rem .8rem .35rem 0;text-align:left;vertical-align:top}
thead th{color:var(--soft);font-size:.85rem;font-weight:400}
tbody tr{border-top:1px solid var(--line)}
tbody th{overflow-wrap:anywhere;min-width:8rem}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
@media(max-width:30rem){.when{margin-left:0;width:100%}}
@media print{body{background:#fff}}
)";

}  // namespace gdn
