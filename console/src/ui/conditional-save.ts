/** Changes of one item of a list that is saved as a whole, such as an alarm rule of a product. */

import { useState } from 'react';
import { ApiError } from '../api/client';
import { isVersionConflict } from './version-conflict';

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

/** For values without a version: the conflict that the node would report. `now` is read just before a change is saved. */
export function rejectOtherVersion(edited: unknown, now: unknown): void {
  if (JSON.stringify(edited) !== JSON.stringify(now)) throw new ApiError(412, 'Somebody else changed this meanwhile.');
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
    /** After a conflict: makes the change in the newest version. */
    overwrite: async (change: (value: T) => T) => apply(await read(), change),
    /** After a conflict: edits the newest version from now on, and returns it. */
    load: async () => {
      const newest = await read();
      setBase(newest);
      setError(undefined);
      return newest.value;
    },
  };
}
