import { i18n } from '@lingui/core';
import { messages as english } from './locales/en.po';

export const languages = { en: 'English', zh: '中文' } as const;
export type Language = keyof typeof languages;

const key = 'tidegate.language';

function preferred(): Language {
  const stored = localStorage.getItem(key);
  if (stored === 'en' || stored === 'zh') return stored;
  return navigator.languages.some((language) => language.startsWith('zh')) ? 'zh' : 'en';
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
