/** Descriptions that the node gives, such as those of fields and settings, in the language of the page. */

import { useLingui } from '@lingui/react';
import { useQuery } from '@tanstack/react-query';

/**
 * Translations by English text. The texts come from the node, which may be newer than the page, so that they have no ids; a text without
 * a translation is shown in English. Keys are the texts themselves rather than their hashes: the file can be edited by hand and needs no
 * generator, and only pages in Chinese load it.
 */
export type Descriptions = Record<string, string>;

/** Numbers, sizes and quoted values; in keys of the catalogue, `#` stands for one of them, or for a list of quoted ones. */
const values = /\d+(?:[KMGT]iB)?|"[^"]*"(?:, "[^"]*")*/g;

/** A text with single spaces, as in the keys of the catalogue. */
export const normalised = (text: string) => text.trim().replace(/\s+/g, ' ');

/** The description of an action's field without the kinds of actions that have it, because forms show the fields of one kind. */
export const withoutKinds = (text: string) => text.replace(/; kinds? [\w ,]+ only\.?$/, '.');

/** The key of a text in the catalogue: the text itself, or with `#` instead of its values. */
export function catalogueKey(text: string, descriptions: Descriptions): string | undefined {
  const key = normalised(text);
  return [key, key.replace(values, '#')].find((each) => Object.hasOwn(descriptions, each));
}

export function translated(text: string, descriptions: Descriptions): string | undefined {
  const key = catalogueKey(text, descriptions);
  if (key === undefined) return undefined;
  if (key === normalised(text)) return descriptions[key];
  const found = normalised(text).match(values) ?? [];
  let next = 0;
  return descriptions[key]?.replace(/#/g, () => found[next++] ?? '');
}

const load = () => import('../locales/descriptions.zh.json').then((module) => module.default as Descriptions);

/** Translates descriptions of the node. While the catalogue is loaded, the result is empty, so that no English text flashes. */
export function useDescriptions(): (text: string) => string {
  const { i18n } = useLingui();
  const isChinese = i18n.locale === 'zh';
  const catalogue = useQuery({
    queryKey: ['descriptions', 'zh'],
    queryFn: load,
    enabled: isChinese,
    staleTime: Infinity,
    gcTime: Infinity,
  });
  const { data, isFetching } = catalogue;
  if (!isChinese) return (text) => text;
  if (!data) return (text) => (isFetching ? '' : text);
  return (text) => translated(text, data) ?? text;
}
