import { Select } from '@mantine/core';
import type { ReactNode } from 'react';
import { api, unwrap, useRead } from '../api/client';

type Kind = 'sinks' | 'connectors' | 'products' | 'device-groups' | 'firmware';

const maxNames = 1_000;

/** The name of another object, chosen from those that exist. */
export function ObjectSelect({
  kind,
  label,
  ariaLabel,
  description,
  value,
  onChange,
  error,
  required,
  disabled,
  filter,
}: {
  kind: Kind;
  label?: string;
  /** Without a label. */
  ariaLabel?: string;
  description?: ReactNode;
  value: unknown;
  onChange: (value: unknown) => void;
  error?: string;
  required: boolean;
  disabled?: boolean;
  /** Which objects can be chosen; default: all. */
  filter?: (object: Record<string, unknown>) => boolean;
}) {
  const objects = useRead([kind, 'names'], async (signal) => {
    const page = await unwrap(
      api.GET(`/api/v1/${kind}` as '/api/v1/sinks', { params: { query: { limit: maxNames } }, signal }),
    );
    return page.data as unknown as Record<string, unknown>[];
  });
  const names = (objects.data ?? [])
    .filter((object) => filter?.(object) ?? true)
    .map((object) => {
      // Connectors and sinks are identified by their name; of other objects it is only a title.
      const id = String(object.id ?? object.name);
      const title = object.id === undefined ? '' : String(object.name || object.title || '');
      return { value: id, label: title === '' || title === id ? id : `${title} (${id})` };
    });
  const current = typeof value === 'string' && value !== '' ? value : null;
  return (
    <Select
      label={label}
      aria-label={ariaLabel}
      description={description}
      error={error}
      required={required}
      disabled={disabled}
      searchable
      clearable={!required}
      // A name whose object does not exist any more stays visible.
      data={
        current !== null && names.every(({ value: name }) => name !== current)
          ? [{ value: current, label: current }, ...names]
          : names
      }
      value={current}
      onChange={(next) => onChange(next ?? undefined)}
    />
  );
}
