// Reads a page into lines of pieces, and finds the elements that numbers stand for. Installed before the page's own
// scripts. A piece is a text, or {kind, name, value, options}.
(() => {
  if (window.__steadyrl) return;
  const CLICKS = ['click', 'mousedown', 'mouseup', 'pointerdown', 'pointerup'];
  const listening = new WeakSet();
  const add = EventTarget.prototype.addEventListener;
  EventTarget.prototype.addEventListener = function (type, ...rest) {
    if (CLICKS.includes(type) && this instanceof Element) listening.add(this);
    return add.call(this, type, ...rest);
  };
  const state = { leaving: false, fresh: true, elements: [], hidden: '' };

  // A click on a link or a form sent: a new page follows, so that looking has to wait for it.
  const opensHere = (target) => ['', '_self', '_top', '_parent'].includes((target || '').toLowerCase());
  add.call(window, 'click', (event) => {
    const link = event.target instanceof Element && event.target.closest('a[href]');
    if (!link || event.defaultPrevented || !opensHere(link.target) || link.protocol === 'javascript:') return;
    const here = location.href.split('#')[0];
    if (link.href.split('#')[0] !== here || !link.href.includes('#')) state.leaving = true;
  });
  add.call(window, 'submit', (event) => {
    const button = event.submitter, own = button && button.getAttribute('formtarget');
    if (!event.defaultPrevented && opensHere(own || event.target.getAttribute('target'))) state.leaving = true;
  });

  const clean = (text) => (text || '').replace(/\s+/g, ' ').trim();
  const TEXT_INPUTS = ['text', 'search', 'password', 'email', 'url', 'tel', 'number', 'date', 'time', 'month', 'week',
    'datetime-local'];

  function kindOf(element) {
    const role = element.getAttribute('role');
    switch (element.localName) {
      case 'a': if (element.hasAttribute('href')) return 'link'; break;
      case 'button': case 'summary': return 'button';
      case 'select': return 'select';
      case 'textarea': return 'textbox';
      case 'input':
        if (TEXT_INPUTS.includes(element.type)) return 'textbox';
        if (element.type === 'checkbox' || element.type === 'radio') return element.type;
        return element.type === 'hidden' || element.type === 'file' ? '' : 'button';
    }
    if (['link', 'button', 'checkbox', 'radio', 'textbox'].includes(role)) return role;
    if (element === document.body || element === document.documentElement) return '';
    // Of nested things that listen the inner one is acted on, where it is one that everybody knows.
    if (element.querySelector('a[href], button, input, select, textarea, [tabindex]')) return '';
    const named = ['tab', 'option', 'menuitem', 'treeitem', 'switch'].includes(role);
    // What can have the keyboard's focus is there to be acted on, even if something around it does the listening.
    return named || element.onclick || element.hasAttribute('tabindex') || listening.has(element) ? 'item' : '';
  }

  function nameOf(element) {
    const label = element.labels && element.labels.length ? element.labels[0].textContent : '';
    const own = element.matches('input, select, textarea')
      ? (kindOf(element) === 'button' ? element.value : '') : element.innerText || element.textContent;
    return clean(element.getAttribute('aria-label') || label || element.getAttribute('placeholder') || own
      || element.getAttribute('title') || element.getAttribute('alt')
      || (kindOf(element) === 'item' && (element.id || element.getAttribute('class'))));  // an icon's only words
  }

  function describe(element) {
    const kind = kindOf(element);
    const piece = { kind, name: nameOf(element), value: '', options: [] };
    if (kind === 'textbox') piece.value = clean(element.value);
    if (element.localName === 'select') {
      piece.options = [...element.options].map((option) => clean(option.label));
      piece.value = element.selectedIndex >= 0 ? piece.options[element.selectedIndex] : '';
    }
    const checked = element.localName === 'input' ? element.checked : element.getAttribute('aria-checked') === 'true';
    if ((kind === 'checkbox' || kind === 'radio') && checked) piece.value = 'on';
    return piece;
  }

  function isShown(element, style) {
    if (style.display === 'none' || style.visibility !== 'visible') return false;
    // A picture has no size before it has come; it is there all the same.
    if (element.localName === 'img' || style.content.startsWith('url(')) return true;
    const box = element.getBoundingClientRect();
    return (box.width > 0 && box.height > 0) || element.childElementCount > 0 || style.display === 'contents';
  }

  function look() {
    if (state.leaving || document.readyState === 'loading') return { leaving: true };
    const lines = [], elements = [];
    let line = [];
    const end = () => { if (line.length) lines.push(line); line = []; };

    function walk(node, silent) {
      if (node.nodeType === Node.TEXT_NODE) {
        const text = clean(node.data);
        if (text && !silent) line.push(text);
        return;
      }
      if (node.nodeType !== Node.ELEMENT_NODE) return;
      if (['script', 'style', 'head', 'noscript', 'template', 'br'].includes(node.localName)) {
        if (node.localName === 'br') end();
        return;
      }
      if (state.hidden && node.matches(state.hidden)) return;
      const style = getComputedStyle(node);
      if (!isShown(node, style)) return;
      const block = !style.display.startsWith('inline') && style.display !== 'table-cell' && style.display !== 'contents';
      if (block) end();
      if (/^h[1-6]$/.test(node.localName) && !silent && !kindOf(node)) {
        line.push('heading ' + clean(node.innerText));
        silent = true;
      }
      if (kindOf(node)) {
        line.push(describe(node));
        elements.push(node);
        silent = true;
      }
      // A label's text is the name of its control already.
      const names = node.localName === 'label' && node.control;
      if (node.localName !== 'select') node.childNodes.forEach((child) => walk(child, silent || names));
      if (block) end();
    }
    walk(document.body, false);
    end();
    state.elements = elements;
    const fresh = state.fresh;
    state.fresh = false;
    return { leaving: false, fresh, lines };
  }

  // Of an element's box, in the order in which they are tried: another element may cover its middle.
  const POINTS = [[.5, .5], [.25, .5], [.75, .5], [.5, .25], [.5, .75], [.1, .1], [.9, .1], [.1, .9], [.9, .9]];

  // Where to press for an element: {x, y}, or {why}. Off-screen elements are scrolled to.
  function aim(number) {
    const element = state.elements[number];
    if (!element || !element.isConnected) return { why: 'is gone' };
    if (element.localName === 'select') return { why: 'is a list; use select' };
    if (element.disabled) return { why: 'is disabled' };
    element.scrollIntoView({ block: 'nearest', inline: 'nearest' });
    for (const box of element.getClientRects()) {
      for (const [right, down] of POINTS) {
        const x = box.left + box.width * right, y = box.top + box.height * down;
        const hit = document.elementFromPoint(x, y);
        const label = hit && hit.closest('label');
        if (hit && (element.contains(hit) || (label && label.control === element))) return { x, y };
      }
    }
    return { why: 'is covered' };
  }

  // Makes a textbox ready for the keyboard, its old text selected.
  function focus(number) {
    const element = state.elements[number];
    if (!element || !element.isConnected) return { why: 'is gone' };
    if (kindOf(element) !== 'textbox') return { why: 'takes no text' };
    if (element.disabled || element.readOnly) return { why: 'is disabled' };
    element.focus();
    element.select();
    return { old: element.value };
  }

  function choose(number, option) {
    const element = state.elements[number];
    if (!element || !element.isConnected) return { why: 'is gone' };
    if (element.localName !== 'select') return { why: 'is no list' };
    if (element.disabled) return { why: 'is disabled' };
    const index = [...element.options].findIndex((one) => clean(one.label) === option);
    if (index < 0) return { why: 'has no such option' };
    element.selectedIndex = index;
    element.dispatchEvent(new Event('input', { bubbles: true }));
    element.dispatchEvent(new Event('change', { bubbles: true }));
    return {};
  }

  Object.defineProperty(window, '__steadyrl', { value: { state, look, aim, focus, choose }, enumerable: false });
})();
