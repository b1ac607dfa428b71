/** The search by a part of a name, and the choice of a state, above a list. */

import { SegmentedControl, TextInput } from '@mantine/core';
import { useDebouncedValue } from '@mantine/hooks';
import { useLingui } from '@lingui/react/macro';
import { IconSearch } from '@tabler/icons-react';
import { useEffect, useState } from 'react';
import { useUrlState } from './url-state';

interface Search {
  typed: string;
  setTyped: (text: string) => void;
  /** What the list is read with: trimmed, and a moment after the last key. */
  wanted: string;
}

/** A search text in the page's address. */
export function useSearch(): Search {
  const [search, setSearch] = useUrlState('search');
  const [typed, setTyped] = useState(search);
  const [wanted] = useDebouncedValue(typed.trim(), 200);
  useEffect(() => {
    if (wanted !== search) setSearch(wanted);
  }, [search, setSearch, wanted]);
  return { typed, setTyped, wanted };
}

interface SearchToolbarProps {
  label: string;
  search: Search;
  state: string;
  setState: (state: string) => void;
  states: { value: string; label: string }[];
}

export function SearchField({ label, search }: { label: string; search: Search }) {
  return (
    <TextInput
      aria-label={label}
      placeholder={label}
      leftSection={<IconSearch size={14} />}
      value={search.typed}
      onChange={(event) => search.setTyped(event.currentTarget.value)}
      w={240}
    />
  );
}

export function SearchToolbar({ label, search, state, setState, states }: SearchToolbarProps) {
  const { t } = useLingui();
  return (
    <>
      <SearchField label={label} search={search} />
      <SegmentedControl size="xs" aria-label={t`State`} value={state} onChange={setState} data={states} />
    </>
  );
}
