/** An editor for rule statements, templates and JSON: CodeMirror, in a chunk of its own. */

import { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap } from '@codemirror/autocomplete';
import type { CompletionSource } from '@codemirror/autocomplete';
import { defaultKeymap, history, historyKeymap } from '@codemirror/commands';
import {
  bracketMatching,
  HighlightStyle,
  StreamLanguage,
  syntaxHighlighting,
  type StreamParser,
} from '@codemirror/language';
import { Compartment, EditorState, RangeSetBuilder, StateEffect, StateField } from '@codemirror/state';
import {
  Decoration,
  drawSelection,
  EditorView,
  hoverTooltip,
  keymap,
  lineNumbers,
  placeholder as placeholderText,
  type DecorationSet,
} from '@codemirror/view';
import { tags } from '@lezer/highlight';
import { useEffect, useRef } from 'react';

export interface CodeEditorProps {
  value: string;
  onChange: (value: string) => void;
  /** For screen readers. */
  label: string;
  language: 'sql' | 'json';
  placeholder?: string;
  /** Names offered while typing. */
  complete?: CompletionSource;
  /** Help for the word under the pointer. */
  describe?: (word: string) => string | null;
  /** Where the text is wrong, from 1. */
  error?: { line: number; column: number } | null;
  minHeight?: number;
  isReadOnly?: boolean;
}

const keywords =
  /^(select|from|where|group|by|having|limit|foreach|do|incase|as|and|or|not|in|between|like|is|null|case|when|then|else|end|true|false|div|mod|distinct)$/i;

const sqlParser: StreamParser<{ inComment: boolean }> = {
  startState: () => ({ inComment: false }),
  token(stream, state) {
    if (state.inComment) {
      if (stream.skipTo('*/')) {
        stream.match('*/');
        state.inComment = false;
      } else stream.skipToEnd();
      return 'comment';
    }
    if (stream.eatSpace()) return null;
    if (stream.match('--') || stream.match(/^#(?!['"/])/)) {
      stream.skipToEnd();
      return 'comment';
    }
    if (stream.match('/*')) {
      state.inComment = true;
      return 'comment';
    }
    if (stream.match(/^'(?:[^'\\]|\\.|'')*'?/) || stream.match(/^"(?:[^"\\]|\\.|"")*"?/)) return 'string';
    if (stream.match(/^`[^`]*`?/)) return 'variableName';
    if (stream.match(/^\d+(\.\d+)?(ms|s|m|h|d|w|mo)?\b/)) return 'number';
    if (stream.match(/^\$?[A-Za-z_][\w$]*/)) {
      const word = stream.current();
      if (keywords.test(word)) return 'keyword';
      return stream.match(/^\s*\(/, false) ? 'function' : 'variableName';
    }
    stream.next();
    return null;
  },
  tokenTable: { function: tags.function(tags.variableName) },
};

const jsonParser: StreamParser<unknown> = {
  token(stream) {
    if (stream.eatSpace()) return null;
    if (stream.match(/^"(?:[^"\\]|\\.)*"?/)) return stream.match(/^\s*:/, false) ? 'propertyName' : 'string';
    if (stream.match(/^-?\d+(\.\d+)?([eE][+-]?\d+)?/)) return 'number';
    if (stream.match(/^(true|false|null)\b/)) return 'keyword';
    stream.next();
    return null;
  },
};

const colours = HighlightStyle.define([
  { tag: tags.keyword, color: 'var(--tg-chart-2)', fontWeight: '600' },
  { tag: tags.string, color: 'var(--tg-chart-6)' },
  { tag: tags.number, color: 'var(--tg-chart-3)' },
  { tag: tags.comment, color: 'var(--tg-dimmed)', fontStyle: 'italic' },
  { tag: tags.propertyName, color: 'var(--tg-chart-1)' },
  { tag: tags.function(tags.variableName), color: 'var(--tg-chart-4)' },
]);

const theme = EditorView.theme({
  '&': { fontSize: '13px', backgroundColor: 'var(--tg-surface)', color: 'inherit' },
  '&.cm-focused': { outline: '2px solid var(--mantine-primary-color-filled)', outlineOffset: '-1px' },
  '.cm-content': { fontFamily: 'var(--mantine-font-family-monospace)', padding: '8px 0', caretColor: 'currentColor' },
  '.cm-cursor': { borderLeftColor: 'currentColor' },
  '.cm-gutters': { backgroundColor: 'transparent', border: '0', color: 'var(--tg-dimmed)' },
  '.cm-scroller': { lineHeight: '1.6' },
  '.cm-wrong': { textDecoration: 'underline wavy var(--tg-critical)' },
  '.cm-placeholder': { color: 'var(--tg-dimmed)' },
  '&.cm-focused .cm-selectionBackground, .cm-selectionBackground': {
    backgroundColor: 'color-mix(in srgb, var(--mantine-primary-color-filled) 25%, transparent) !important',
  },
  '.cm-tooltip': {
    backgroundColor: 'var(--tg-surface)',
    border: '1px solid var(--tg-border)',
    borderRadius: '4px',
    color: 'inherit',
  },
  '.cm-tooltip-autocomplete ul li[aria-selected]': {
    backgroundColor: 'var(--mantine-primary-color-filled)',
    color: 'white',
  },
  '.cm-completionInfo, .cm-help': { padding: '8px 10px', maxWidth: '420px', whiteSpace: 'pre-wrap' },
  '.cm-completionDetail': { color: 'var(--tg-dimmed)', fontStyle: 'normal' },
});

const markError = StateEffect.define<{ line: number; column: number } | null>();
const wrong = Decoration.mark({ class: 'cm-wrong' });

const errorMark = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update(marks, transaction) {
    for (const effect of transaction.effects) {
      if (!effect.is(markError)) continue;
      const builder = new RangeSetBuilder<Decoration>();
      const { value } = effect;
      const { doc } = transaction.state;
      if (value && value.line >= 1 && value.line <= doc.lines) {
        const line = doc.line(value.line);
        const from = Math.min(line.from + value.column - 1, line.to);
        const word = /^[\w$]+/.exec(line.text.slice(from - line.from))?.[0].length ?? 1;
        const to = Math.min(from + word, line.to);
        if (to > from) builder.add(from, to, wrong);
        else if (line.to > line.from) builder.add(line.to - 1, line.to, wrong);
      }
      return builder.finish();
    }
    return marks.map(transaction.changes);
  },
  provide: (field) => EditorView.decorations.from(field),
});

export default function CodeEditor({
  value,
  onChange,
  label,
  language,
  placeholder,
  complete,
  describe,
  error,
  minHeight = 120,
  isReadOnly = false,
}: CodeEditorProps) {
  const box = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView | null>(null);
  const latest = useRef({ value, onChange, complete, describe });
  latest.current = { value, onChange, complete, describe };
  const readOnly = useRef(new Compartment());

  useEffect(() => {
    if (!box.current) return;
    const nonce = document.querySelector<HTMLMetaElement>('meta[name="csp-nonce"]')?.content ?? '';
    const created = new EditorView({
      parent: box.current,
      doc: latest.current.value,
      extensions: [
        EditorView.cspNonce.of(nonce),
        language === 'sql' ? [lineNumbers()] : [],
        history(),
        drawSelection(),
        bracketMatching(),
        closeBrackets(),
        StreamLanguage.define(language === 'sql' ? sqlParser : jsonParser),
        syntaxHighlighting(colours),
        autocompletion({
          override: [(context) => latest.current.complete?.(context) ?? null],
          icons: false,
        }),
        hoverTooltip((shown, at) => {
          const word = shown.state.wordAt(at);
          const text = word && latest.current.describe?.(shown.state.sliceDoc(word.from, word.to));
          if (!word || !text) return null;
          return {
            pos: word.from,
            end: word.to,
            create: () => {
              const dom = document.createElement('div');
              dom.className = 'cm-help';
              dom.textContent = text;
              return { dom };
            },
          };
        }),
        // Tab leaves the editor, so that the page can be used by keyboard alone.
        keymap.of([...closeBracketsKeymap, ...defaultKeymap, ...historyKeymap, ...completionKeymap]),
        EditorView.lineWrapping,
        EditorView.contentAttributes.of({ 'aria-label': label }),
        EditorView.theme({ '.cm-content': { minHeight: `${minHeight}px` } }),
        placeholder ? placeholderText(placeholder) : [],
        readOnly.current.of(EditorState.readOnly.of(isReadOnly)),
        theme,
        errorMark,
        EditorView.updateListener.of((update) => {
          if (update.docChanged) latest.current.onChange(update.state.doc.toString());
        }),
      ],
    });
    view.current = created;
    return () => {
      created.destroy();
      view.current = null;
    };
    // The editor keeps its own state; later values are applied below.
  }, [isReadOnly, label, language, minHeight, placeholder]);

  useEffect(() => {
    const current = view.current;
    if (!current || current.state.doc.toString() === value) return;
    current.dispatch({ changes: { from: 0, to: current.state.doc.length, insert: value } });
  }, [value]);

  const line = error?.line;
  const column = error?.column;
  useEffect(() => {
    const place = line !== undefined && column !== undefined ? { line, column } : null;
    view.current?.dispatch({ effects: markError.of(place) });
  }, [column, line]);

  return <div ref={box} className="code-editor" />;
}
