document.querySelectorAll('[hidden]').forEach((e) => { e.hidden = false; });
const one = (selector, from = document) => from.querySelector(selector);
const all = (selector, from = document) => [...from.querySelectorAll(selector)];

const search = one('#search'), hits = one('#hits');
search?.addEventListener('input', () => {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const rank = ([title, , , text]) => {
    const name = title.toLowerCase(), whole = `${name} ${text.toLowerCase()}`;
    if (!words.every((w) => whole.includes(w))) return 0;
    return words.every((w) => name.includes(w)) ? (name === words.join(' ') ? 3 : 2) : 1;
  };
  const found = DATA.search.map((e) => [rank(e), e]).filter(([r]) => r && words.length).sort((a, b) => b[0] - a[0]);
  hits.replaceChildren(...found.slice(0, 12).map(([, [title, href, kind, text]]) => {
    const line = document.createElement('li'), link = document.createElement('a'), note = document.createElement('span');
    [link.href, link.textContent] = [href, title];
    [note.className, note.textContent] = ['note', `${kind}. ${text}`];
    line.append(link, note);
    return line;
  }));
  if (words.length && !found.length) hits.textContent = 'Nothing found.';
});

if (location.hash === '#search') search?.focus();

const readout = one('#readout');
const say = (e) => { if (e.target.dataset?.name) readout.textContent = e.target.title || e.target.dataset.text; };
for (const event of ['pointerover', 'focusin']) one('.plot')?.addEventListener(event, say);
all('[name=place]').forEach((radio) => radio.addEventListener('change', () => {
  one('#place').textContent = DATA.about[radio.value] || radio.value;
  const { dots, x: across, y: down } = DATA.places[radio.value];
  const line = (side, name) => ([at, text]) => {
    const mark = document.createElement('i'), label = document.createElement('span');
    [mark.className, mark.style[side], label.textContent] = [name, `${at}%`, text];
    mark.append(label);
    return mark;
  };
  one('.plot .grid').replaceChildren(...across.map(line('left', 'v')), ...down.map(line('top', 'h')));
  for (const dot of all('.dot')) {
    const [x, y, lost, shift, text] = dots[dot.dataset.name] || [];
    dot.style.display = x === undefined ? 'none' : '';
    if (x === undefined) continue;
    [dot.style.left, dot.style.top, dot.title] = [`${x}%`, `${y}%`, text];
    dot.classList.toggle('lost', lost);
    const label = one('span', dot);
    if (label) { label.style.marginTop = `${shift}px`; label.classList.toggle('left', x > 62); }
  }
}));

const slowdown = one('#slowdown'), time = one('#time'), play = one('#play');
const until = (moments, now) => moments.filter((m) => m <= now).length;
function draw() {
  const [level, timelines] = DATA.watched[slowdown.value], now = Number(time.value);
  one('#slower').textContent = level;
  for (const figure of all('.watch figure')) {
    const { paths, batches, updates } = timelines[figure.dataset.name];
    for (const kind of ['compute', 'send', 'mix']) one(`path.${kind}`, figure).setAttribute('d', paths[kind] || '');
    const veil = one('.veil', figure);
    veil.setAttribute('x', now);
    veil.setAttribute('width', 1000 - now);
    one('output', figure).textContent = `${until(batches, now)} batches trained` + (updates.length ? `, ${until(updates, now)} updates at the server` : '');
  }
}
let timer = 0;
const stop = () => { clearInterval(timer); timer = 0; play.textContent = 'Play'; };
play?.addEventListener('click', () => {
  if (timer) return stop();
  if (time.value >= 1000) time.value = 0;
  play.textContent = 'Pause';
  timer = setInterval(() => { time.value = Number(time.value) + 5; draw(); if (time.value >= 1000) stop(); }, 30);
});
slowdown?.addEventListener('input', draw);
time?.addEventListener('input', () => { stop(); draw(); });
