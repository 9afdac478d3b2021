const again = Number(document.documentElement.dataset.again);
const told = document.getElementById('told');
async function refresh() {
  try {
    const reply = await fetch('/', { cache: 'no-store', signal: AbortSignal.timeout(20000) });
    if (!reply.ok) throw new Error('HTTP ' + reply.status);
    const fresh = new DOMParser().parseFromString(await reply.text(), 'text/html');
    const main = document.querySelector('main');
    const open = Array.from(main.querySelectorAll('details'), (one) => one.open);
    const sorted = Array.from(main.querySelectorAll('table'), (table) => {
      const head = table.querySelector('[aria-sort]');
      return head && [head.cellIndex, head.getAttribute('aria-sort') === 'ascending'];
    });
    const scrolled = Array.from(main.querySelectorAll('.scroll,figure'), (one) => one.scrollLeft);
    const next = document.importNode(fresh.querySelector('main'), true);
    next.querySelectorAll('details').forEach((one, at) => { one.open = Boolean(open[at]); });
    next.querySelectorAll('table').forEach((table, at) => {
      const head = sorted[at] && table.tHead.rows[0].cells[sorted[at][0]];
      if (head) sort(head, sorted[at][1]);
    });
    main.replaceWith(next);
    next.querySelectorAll('.scroll,figure').forEach((one, at) => { one.scrollLeft = scrolled[at] || 0; });
    document.title = fresh.title;
    told.textContent = 'as of ' + new Date().toLocaleTimeString();
  } catch (error) {
    told.textContent = 'no answer since ' + (told.dataset.lost ||= new Date().toLocaleTimeString());
    setTimeout(refresh, again);
    return;
  }
  delete told.dataset.lost;
  setTimeout(refresh, again);
}
setTimeout(refresh, again);
