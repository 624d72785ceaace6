// The script of the status page. It renews the page every 5 s, and shows the values under the pointer.
//
// The page is complete without the script, but does not renew itself. The script contacts this server only.
// Thread safety: a constant.
//
//   HttpResponse{.content_type = "text/javascript; charset=utf-8", .body = kStatusScript};
#pragma once

namespace gdn {

inline constexpr char kStatusScript[] = R"('use strict';
(() => {
  const kEverySeconds = 5;
  const tip = document.createElement('p');
  tip.className = 'tip';
  tip.hidden = true;
  let busy = false;
  let over = null;

  // A reader who holds the page, marks text or looks at a value is not disturbed.
  const wanted = () => !document.hidden && !over && !document.querySelector('#hold').checked &&
      String(document.getSelection()) === '';
  const renew = async () => {
    if (busy || !wanted()) return;
    busy = true;
    try {
      const reply = await fetch(location.pathname, {cache: 'no-store', signal: AbortSignal.timeout(4000)});
      if (!reply.ok) throw new Error(String(reply.status));
      const next = new DOMParser().parseFromString(await reply.text(), 'text/html');
      if (!wanted()) return;
      for (const part of ['main', '.state', '.time']) {
        document.querySelector(part).replaceWith(next.querySelector(part));
      }
      document.title = next.title;
    } catch (error) {
      const state = document.querySelector('.state');
      state.className = 'state bad';
      state.textContent = 'no answer from the server; the figures are those of ' +
          document.querySelector('.time').textContent;
    } finally {
      busy = false;
    }
  };
  setInterval(renew, 1000 * kEverySeconds);

  const leave = () => {
    if (over) tip.remove();
    over = null;
  };
  document.addEventListener('pointermove', (event) => {
    const area = event.target instanceof Element ? event.target.closest('.area') : null;
    if (!area) return leave();
    over = area;
    const box = area.getBoundingClientRect();
    const seconds = Number(area.dataset.seconds);
    const ago = Math.min(seconds, Math.max(1, Math.ceil(seconds * (1 - (event.clientX - box.left) / box.width))));
    const values = [...area.querySelectorAll('path[data-values]')].map((line) => {
      const all = line.dataset.values.split(',');
      const value = all[all.length - ago];
      return line.dataset.name + ' ' + (value ? Number(value).toLocaleString('en') : '\u2013');
    });
    tip.textContent = ago + ' s ago: ' + values.join(', ');
    tip.style.left = 100 * (1 - ago / seconds) + '%';
    tip.classList.toggle('left', ago < seconds / 2);
    tip.hidden = false;
    area.append(tip);
  });
  document.addEventListener('pointerleave', leave);
  document.querySelector('.hold').hidden = false;
})();
)";

}  // namespace gdn
