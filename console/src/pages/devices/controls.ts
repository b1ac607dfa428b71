/** Controls of a device: what sends which command. They are kept in a server attribute of the device. */

export type ControlKind = 'switch' | 'slider' | 'number' | 'button';

export const controlIcons = ['bulb', 'thunder', 'fire', 'api'] as const;
export type ControlIcon = (typeof controlIcons)[number];

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
  icon?: ControlIcon;
  /** What the control shows before something is sent: a truth value for a switch, otherwise a number. */
  defaultValue?: boolean | number;
  /** Asks before it sends. */
  isDangerous?: boolean;
}

export const controlsAttribute = 'console_controls';

/** The controls in an attribute; anything else is ignored. */
export function controlsOf(value: unknown): Control[] {
  if (!Array.isArray(value)) return [];
  const controls = value.filter(
    (each): each is Control =>
      typeof each === 'object' &&
      each !== null &&
      typeof each.id === 'string' &&
      typeof each.label === 'string' &&
      typeof each.command === 'string' &&
      ['switch', 'slider', 'number', 'button'].includes(each.kind),
  );
  return controls.map(({ icon, defaultValue, ...control }) => ({
    ...control,
    ...(icon !== undefined && controlIcons.includes(icon) ? { icon } : {}),
    ...(isDefault(control.kind, defaultValue) ? { defaultValue } : {}),
  }));
}

function isDefault(kind: ControlKind, value: unknown): value is boolean | number {
  return kind === 'switch' ? typeof value === 'boolean' : kind !== 'button' && typeof value === 'number';
}

/** What a control shows before something is sent. */
export function initialValue({ kind, defaultValue, min = 0, max }: Control): boolean | number {
  if (kind === 'switch') return defaultValue === true;
  const value = typeof defaultValue === 'number' ? defaultValue : min;
  // A slider always has an end.
  return Math.min(Math.max(value, min), max ?? (kind === 'slider' ? 100 : Infinity));
}

/** The control as another kind, without what that kind does not have. */
export function withKind({ defaultValue, ...control }: Control, kind: ControlKind): Control {
  return { ...control, kind, ...(isDefault(kind, defaultValue) ? { defaultValue } : {}) };
}

/** The parameters of the command that a control sends. */
export function paramsOf(kind: ControlKind, value: boolean | number | undefined): Record<string, unknown> {
  if (kind === 'switch') return { state: value ? 'on' : 'off' };
  return kind === 'button' ? {} : { value };
}
