'use strict';
document.addEventListener('click', (event) => {
  const button = event.target.closest('button');
  if (!button) return;
  const root = document.documentElement;
  if (button.id === 'theme') {
    const dark = root.dataset.theme
      ? root.dataset.theme === 'dark'
      : matchMedia('(prefers-color-scheme: dark)').matches;
    root.dataset.theme = dark ? 'light' : 'dark';
    return;
  }
  const head = button.closest('th');
  if (!head) return;
  sort(head, head.getAttribute('aria-sort') !== 'ascending');
});
function sort(head, up) {
  const body = head.closest('table').tBodies[0];
  const at = head.cellIndex;
  const key = (row) => {
    const cell = row.cells[at];
    if (!head.classList.contains('n')) return cell.textContent;
    const value = cell.dataset.v === undefined ? NaN : Number(cell.dataset.v);
    return Number.isNaN(value) ? -Infinity : value;
  };
  const text = new Intl.Collator(undefined, { numeric: true });
  const order = (a, b) => (typeof a === 'string' ? text.compare(a, b) : a < b ? -1 : Number(a > b));
  const rows = Array.from(body.rows, (row) => [key(row), row]);
  rows.sort((a, b) => (up ? order(a[0], b[0]) : order(b[0], a[0])));
  body.append(...rows.map((pair) => pair[1]));
  for (const other of head.parentNode.cells) other.removeAttribute('aria-sort');
  head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
}
