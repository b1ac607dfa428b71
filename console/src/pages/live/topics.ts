/** What is wrong with a topic filter (MQTT 5, section 4.7), or `null`. */
export function filterProblem(filter: string): 'empty' | 'hash' | 'plus' | 'long' | null {
  if (filter === '') return 'empty';
  if (new TextEncoder().encode(filter).length > 65_535) return 'long';
  const levels = filter.split('/');
  if (levels.some((level, index) => level.includes('#') && (level !== '#' || index < levels.length - 1))) return 'hash';
  if (levels.some((level) => level.includes('+') && level !== '+')) return 'plus';
  return null;
}

/** Whether the text is a topic that a message can have. */
export function isTopic(topic: string): boolean {
  return topic !== '' && !/[+#\0]/.test(topic);
}
