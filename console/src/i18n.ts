import { i18n } from '@lingui/core';
import { messages as english } from './locales/en.po';

export const languages = { en: 'English', zh: '中文' } as const;
export type Language = keyof typeof languages;

const key = 'tidegate.language';

function preferred(): Language {
  const stored = localStorage.getItem(key);
  if (stored === 'en' || stored === 'zh') return stored;
  return firstKnown(navigator.languages);
}

/** The first of somebody's languages that the console has. */
export function firstKnown(wanted: readonly string[]): Language {
  const known = wanted.map((language) => language.toLowerCase().split('-')[0]);
  return known.find((language): language is Language => language !== undefined && language in languages) ?? 'en';
}

/** Loads the messages of a language and switches to it. English is part of the first load. */
export async function switchLanguage(language: Language): Promise<void> {
  const messages = language === 'en' ? english : (await import('./locales/zh.po')).messages;
  i18n.loadAndActivate({ locale: language, messages });
  document.documentElement.lang = language;
  localStorage.setItem(key, language);
}

export async function loadPreferredLanguage(): Promise<void> {
  await switchLanguage(preferred()).catch(() => switchLanguage('en'));
}

export { i18n };
