// Fails if a text of the sources is missing in a catalogue, or is not translated.
import { execFileSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';

const languages = ['en', 'zh'];
const path = (language) => `src/locales/${language}.po`;
const originals = languages.map((language) => readFileSync(path(language)));
const read = (language) => readFileSync(path(language), 'utf8').replace(/"POT-Creation-Date.*\n/, '');
const before = languages.map(read);
execFileSync('node_modules/.bin/lingui', ['extract', '--clean'], { stdio: 'pipe' });
const after = languages.map(read);
languages.forEach((language, index) => writeFileSync(path(language), originals[index]));
if (before.join() !== after.join())
  throw new Error('the catalogues were not up to date; commit what `npm run messages` wrote');
const missing = [...after[1].matchAll(/^msgid "(.+)"\nmsgstr ""$/gm)].map(([, text]) => text);
if (missing.length > 0) throw new Error(`src/locales/zh.po: not translated: ${missing.join('; ')}`);
