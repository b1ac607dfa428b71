/** Completion and help for the rule language, from the tables of the node. */

import type { Completion, CompletionSource } from '@codemirror/autocomplete';
import type { Schemas } from '../../api/client';

export type RuleLanguage = Schemas['RuleLanguage'];

const keywords = [
  'SELECT',
  'FROM',
  'WHERE',
  'GROUP BY',
  'HAVING',
  'LIMIT',
  'FOREACH',
  'DO',
  'INCASE',
  'AS',
  'AND',
  'OR',
  'NOT',
  'IN',
  'BETWEEN',
  'LIKE',
  'IS NULL',
  'CASE WHEN',
  'THEN',
  'ELSE',
  'END',
];

/** Names offered in a statement: after FROM, and inside quotes there, sources; elsewhere everything else. */
export function completions(language: RuleLanguage, ruleNames: readonly string[]): CompletionSource {
  const names = languageNames(language);
  const sources: Completion[] = [
    ...language.sources.flatMap((source) =>
      [source.name, ...source.aliases].map((name) => ({ label: name, info: source.help, type: 'type' })),
    ),
    ...ruleNames.map((name) => ({ label: `$rule/${name}`, type: 'type' })),
  ];
  return (context) => {
    const before = context.state.sliceDoc(0, context.pos);
    const source = /\bfrom\s+(?:[^\s"]+\s*,\s*|"[^"]*"\s*,\s*)*("?)([$\w/+#.:-]*)$/i.exec(before);
    if (source && (source[1] || source[2]?.startsWith('$') || context.explicit)) {
      const quote = source[1] ? '' : '"';
      return {
        from: context.pos - (source[2]?.length ?? 0),
        options: sources.map((each) => ({ ...each, apply: `${quote}${each.label}${quote}` })),
        validFor: /^[$\w/+#.:-]*$/,
      };
    }
    // Inside a text nothing is offered.
    if (((before.split('\n').pop() ?? '').match(/(?<!\\)["']/g)?.length ?? 0) % 2 === 1) return null;
    const word = context.matchBefore(/[A-Za-z_][\w]*/);
    if (!word && !context.explicit) return null;
    const from = word?.from ?? context.pos;
    // What follows a dot is a part of a payload, which only its sender knows, or a function as a method.
    const isMethod = context.state.sliceDoc(Math.max(0, from - 1), from) === '.';
    return {
      from,
      options: isMethod ? names.filter(({ type }) => type === 'function') : names,
      validFor: /^\w*$/,
    };
  };
}

function languageNames(language: RuleLanguage): Completion[] {
  return [
    ...keywords.map((label): Completion => ({ label, type: 'keyword', boost: -1 })),
    ...language.fields.flatMap((field) =>
      [field.name, ...field.aliases].map((label, index): Completion => ({
        label,
        detail: field.help,
        type: 'property',
        boost: index === 0 ? 2 : 0,
      })),
    ),
    ...language.aggregates.map((each): Completion => ({
      label: each.name,
      apply: `${each.name}(`,
      detail: each.help,
      type: 'function',
    })),
    ...language.windows.map((each): Completion => ({ label: each.name, detail: each.help, type: 'function' })),
    ...language.functions.flatMap((each) =>
      [each.name, ...each.aliases].map((label): Completion => ({
        label,
        apply: `${label}(`,
        detail: `(${each.parameters})`,
        info: () => textNode(functionHelp(each)),
        type: 'function',
      })),
    ),
  ];
}

function textNode(text: string): Node {
  const node = document.createElement('div');
  node.textContent = text;
  return node;
}

export function functionHelp(each: RuleLanguage['functions'][number]): string {
  const lines = [
    `${each.name}(${each.parameters}) → ${each.returns}`,
    each.help,
    `${each.example} = ${each.example_result}`,
  ];
  if (each.dialect_difference) lines.push(each.dialect_difference);
  return lines.join('\n');
}

const normalized = (name: string) => name.replaceAll('_', '').toLowerCase();

/** Help for a name of the language. */
export function describeWord(language: RuleLanguage, word: string): string | null {
  const found = language.functions.find((each) =>
    [each.name, ...each.aliases].some((name) => normalized(name) === normalized(word)),
  );
  if (found) return functionHelp(found);
  const named = [...language.fields, ...language.aggregates].find(
    (each) => each.name === word || each.aliases.includes(word),
  );
  return named?.help ?? null;
}

/** Line and column of a compile error, and the first line of its text. */
export function errorPlace(detail: string): { text: string; place: { line: number; column: number } | null } {
  const first = (detail.split('\n')[0] ?? detail).replace(/^rule\.sql: /, '');
  const found = /line (\d+), column (\d+)/.exec(first);
  return { text: first, place: found ? { line: Number(found[1]), column: Number(found[2]) } : null };
}

/** The topic filters in FROM, from which a message for a test can be received. */
export function topicFilters(sql: string): string[] {
  const from = /\bfrom\b([\s\S]*?)(?:\bwhere\b|\bgroup\s+by\b|\blimit\b|$)/i.exec(sql)?.[1] ?? '';
  const names = [...from.matchAll(/"([^"]+)"|([^\s,"]+)/g)].map((match) => match[1] ?? match[2] ?? '');
  return names.flatMap((name) => {
    if (!name.startsWith('$')) return [name];
    if (/^\$EVENT[./]PUBLISH$/i.test(name) || name === '$events/message/publish') {
      const wanted = [...sql.matchAll(/\btopic\s*(?:=~|like|=)\s*'([^'%]+)'/gi)].map((match) => match[1] ?? '');
      return wanted.length > 0 ? wanted : ['#'];
    }
    return [];
  });
}
