/** Controls of a device: what sends which command. They are kept in a server attribute of the device. */

export type ControlKind = 'switch' | 'slider' | 'number' | 'button';

export interface Control {
  id: string;
  kind: ControlKind;
  label: string;
  /** The method of the command. */
  command: string;
  min?: number;
  max?: number;
  step?: number;
  unit?: string;
  /** Asks before it sends. */
  isDangerous?: boolean;
}

export const controlsAttribute = 'console_controls';

/** The controls in an attribute; anything else is ignored. */
export function controlsOf(value: unknown): Control[] {
  if (!Array.isArray(value)) return [];
  return value.filter(
    (each): each is Control =>
      typeof each === 'object' &&
      each !== null &&
      typeof each.id === 'string' &&
      typeof each.label === 'string' &&
      typeof each.command === 'string' &&
      ['switch', 'slider', 'number', 'button'].includes(each.kind),
  );
}

/** The parameters of the command that a control sends. */
export function paramsOf(kind: ControlKind, value: boolean | number | undefined): Record<string, unknown> {
  if (kind === 'switch') return { state: value ? 'on' : 'off' };
  return kind === 'button' ? {} : { value };
}
