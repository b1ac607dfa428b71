/** The commands that do the same as the page Live. */

import type { MqttLogin } from '../../api/mqtt';
import { quoted } from '../../ui/quoted';
import type { Draft } from './publish-panel';

export function subscribeCommand({ url, username }: MqttLogin, filter: string, qos: number): string {
  const user = username ? ` -u ${quoted(username)} --password-file FILE` : '';
  return `tidegate sub --url ${quoted(url || 'ws://HOST:PORT/mqtt')}${user} -t ${quoted(filter)} -q ${qos} -v`;
}

/** The options of `tidegate ctl publish`. */
export function publishOptions({ topic, payload, qos, retain }: Draft): string {
  return `--topic ${quoted(topic || 'TOPIC')} --message ${quoted(payload)} --qos ${qos}${retain ? ' --retain' : ''}`;
}
