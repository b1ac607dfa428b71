/** Changes of one item of a list that is saved as a whole, such as an alarm rule of a product. */

import { useState } from 'react';
import { isVersionConflict, type VersionConflictProps } from './version-conflict';

/** A part of an object as it was read. */
export interface ReadValue<T> {
  value: T;
  /** Replaces it. Rejected with 412 if somebody else has changed the object since it was read. */
  save: (value: T) => Promise<unknown>;
}

interface Identified {
  id: string;
}

/** The list with an item replaced; an item that is new, or that somebody else has removed, is added. */
export function withItem<T extends Identified>(list: readonly T[], id: string | undefined, item: T): T[] {
  return list.some((each) => each.id === id)
    ? list.map((each) => (each.id === id ? item : each))
    : [...list.filter((each) => each.id !== item.id), item];
}

export function withoutItem<T extends Identified>(list: readonly T[], id: string): T[] {
  return list.filter((each) => each.id !== id);
}

/** Saves changes of the value as it was when the editor was opened, not of one that was read in the meantime. */
export function useConditionalSave<T>(opened: ReadValue<T>, read: () => Promise<ReadValue<T>>, onSaved: () => void) {
  const [base, setBase] = useState(opened);
  const [error, setError] = useState<Error>();
  const [isPending, setPending] = useState(false);
  const apply = async (to: ReadValue<T>, change: (value: T) => T) => {
    setPending(true);
    setError(undefined);
    try {
      await to.save(change(to.value));
      onSaved();
    } catch (failure) {
      setError(failure as Error);
    } finally {
      setPending(false);
    }
  };
  return {
    value: base.value,
    isPending,
    isConflict: isVersionConflict(error),
    error,
    save: (change: (value: T) => T) => apply(base, change),
    /** After a conflict: what [`VersionConflict`] asks. `onLoad` shows the other version in the editor. */
    conflict: (change: (value: T) => T, onLoad: (theirs: T) => void): VersionConflictProps<T> => ({
      base: base.value,
      mine: change(base.value),
      mineOver: change,
      read: async () => {
        const newest = await read();
        return {
          value: newest.value,
          save: async (value) => {
            await newest.save(value);
            onSaved();
          },
          load: () => {
            setBase(newest);
            setError(undefined);
            onLoad(newest.value);
          },
        };
      },
    }),
  };
}
