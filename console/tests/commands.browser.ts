/** The commands of "Show the call" exist: the program knows their words and options. */

import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { required } from './support/node';

const sources = join(import.meta.dirname, '../src');
/** `ctl="…"`, `ctl={`…`}` and `ctl: '…'`, and what follows `?` and `:` of a choice. */
const literals = /\bctl(?:=\{?|:)\s*(?:[^`'",{}]*\?\s*)?([`'"])(.*?)\1(?:\s*:\s*([`'"])(.*?)\3)?/gs;

interface ShownCommand {
  file: string;
  words: string[];
  options: string[];
}

/** The words before the first value, and the options. */
function parsed(file: string, text: string): ShownCommand {
  const words: string[] = [];
  for (const word of text.trim().split(/\s+/)) {
    if (!/^[a-z][a-z-]*$/.test(word)) break;
    words.push(word);
  }
  return { file, words, options: text.match(/--[a-z][a-z-]*/g) ?? [] };
}

function shownCommands(): ShownCommand[] {
  const files = readdirSync(sources, { recursive: true, encoding: 'utf8' }).filter((file) => file.endsWith('.tsx'));
  return files.flatMap((file) => {
    const text = readFileSync(join(sources, file), 'utf8');
    return [...text.matchAll(literals)]
      .flatMap(([, , first, , second]) => [first, second])
      .filter((literal) => literal !== undefined)
      .map((literal) => parsed(file, literal));
  });
}

test('commands: the program knows all commands that pages show', () => {
  const commands = shownCommands().filter(({ words }) => words.length > 0);
  expect(commands.length).toBeGreaterThan(50);
  const problems = new Set<string>();
  for (const { file, words, options } of commands) {
    const result = spawnSync(required('TIDEGATE_TEST_PROGRAM'), ['ctl', ...words, '--help'], { encoding: 'utf8' });
    const command = `${file}: tidegate ctl ${words.join(' ')}`;
    if (result.status !== 0) problems.add(`${command}: ${result.stderr.split('\n')[0]}`);
    // A word that is a value in the page, such as the action of a campaign.
    else if (/^Usage: .*<COMMAND>/m.test(result.stdout)) continue;
    for (const option of options)
      if (!result.stdout.includes(option)) problems.add(`${command} ${option}: no such option`);
  }
  expect([...problems]).toEqual([]);
}, 120_000);
