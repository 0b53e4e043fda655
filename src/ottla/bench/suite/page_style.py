"""The style sheet of the report, for light and dark screens."""

STYLE = """
:root { --text: #1b1f24; --quiet: #68707a; --line: #e1e4e8; --page: #ffffff; --met: #1f8a5b; --missed: #c2603f;
        --s0: #2f6fd0; --s1: #d9730d; --s2: #1f8a5b; --s3: #b03a8c; --s4: #7a5cc9; --s5: #8a7a12;
        --s6: #c43d3d; --s7: #4d8ea6; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e7ea; --quiet: #98a1ab; --line: #30363d; --page: #16191d;
        --met: #58c495; --missed: #e08a6b; --s0: #6fa8ee; --s1: #f0a050; --s2: #58c495; --s3: #e081c2; --s4: #a994f0;
        --s5: #cdbb4a; --s6: #ee8080; --s7: #7fc0d8; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); max-width: 1160px;
       margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.2rem; }
figure { margin: 1.6rem 0; max-width: 960px; } figcaption { font-size: 14px; font-weight: 600; margin-bottom: .3rem; }
svg { width: 100%; display: block; }
svg text { font: 11px system-ui, sans-serif; fill: var(--text); }
.quiet, svg .quiet { color: var(--quiet); fill: var(--quiet); }
ul.quiet, p.quiet { font-size: 13px; }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .one { stroke: var(--quiet); stroke-width: 1.5; }
svg .goal { stroke: var(--text); stroke-width: 2; }
svg line, svg polyline { stroke-width: 2; fill: none; }
svg polyline { fill: none !important; }
.s0 { fill: var(--s0); stroke: var(--s0); } .s1 { fill: var(--s1); stroke: var(--s1); }
.s2 { fill: var(--s2); stroke: var(--s2); } .s3 { fill: var(--s3); stroke: var(--s3); }
.s4 { fill: var(--s4); stroke: var(--s4); } .s5 { fill: var(--s5); stroke: var(--s5); }
.s6 { fill: var(--s6); stroke: var(--s6); } .s7 { fill: var(--s7); stroke: var(--s7); }
.met { fill: var(--met); stroke: var(--met); } .missed { fill: var(--missed); stroke: var(--missed); }
svg line.thin { stroke-width: 1.5; opacity: .6; }
svg .hollow { fill: var(--page); stroke-width: 2; }
.text-met { color: var(--met); } .text-missed { color: var(--missed); }
.failed { border-left: 4px solid var(--missed); padding: .1rem 1rem .4rem; margin: 1.5rem 0; overflow-wrap: anywhere;
          background: color-mix(in srgb, var(--missed) 9%, var(--page)); }
.failed h2 { margin: .6rem 0 .2rem; color: var(--missed); font-size: 1.15rem; }
.failed li { font-size: 13px; margin: .3rem 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
th { vertical-align: bottom; }
dt { font-weight: 600; margin-top: .8rem; } dd { margin: 0; font-size: 13px; overflow-wrap: anywhere; }
"""
