/** Lists of names in the address of the page, separated by commas; names may contain commas. */

export function textOf(names: readonly string[]): string {
  return names.map((name) => name.replaceAll('%', '%25').replaceAll(',', '%2C')).join(',');
}

export function namesOf(text: string): string[] {
  if (text === '') return [];
  return text.split(',').map((name) => name.replaceAll('%2C', ',').replaceAll('%25', '%'));
}
